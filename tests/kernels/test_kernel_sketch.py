"""Count-sketches: the same cells and signs on both backends, each as likely as any other."""

import pytest
import torch
from torch import Generator, Tensor

from atomo.kernels import sketch
from atomo.kernels.device import sketch as device

SEEDS = (0, 1, 2**62 + 12345, 2**63 - 1)


def normal(count: int) -> Tensor:
    return torch.randn(count, generator=Generator().manual_seed(0))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("entries", "size"), [(1, 1), (1000, 7), (5000, 640)])
def test_both_backends_make_and_read_the_same_cells(seed, entries, size):
    values, found, outs = normal(entries), [], []
    for backend in (sketch, device):
        cells, out = torch.zeros(size), torch.ones(entries)
        backend.fill_cells(values, seed, cells)
        backend.add_cells(cells, seed, out, 0.5)
        found, outs = [*found, cells], [*outs, out]
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*outs)


def test_cells_and_signs_are_evenly_used():
    ones, cells = torch.ones(100_000), torch.zeros(10)
    places, signs = device.hashed(ones, 7, 10)
    counts = torch.bincount(places, minlength=10)
    assert ((counts - 10_000).abs() < 5 * 95).all()
    assert abs(float(signs.sum())) < 5 * 317
    sketch.fill_cells(ones, 7, cells)
    torch.testing.assert_close(cells, torch.zeros(10).index_add_(0, places, signs))
