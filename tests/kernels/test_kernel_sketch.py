"""Count-sketches: the same cells and signs in all backends, each as likely as any other."""

import pytest
import torch
from support.backends import backends
from support.draws import normal

from atomo.kernels import sketch
from atomo.kernels.sketch import reference

SEEDS = (0, 1, 2**62 + 12345, 2**63 - 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("entries", "size"), [(1, 1), (1000, 7), (5000, 640)])
def test_all_backends_make_and_read_the_same_cells(seed, entries, size):
    values, sketches, outs = normal(entries), [], []
    # In its interpreter Triton has enough of one case of one block.
    for backend in backends("sketch", interpreted=(seed, entries) == (SEEDS[-1], 1000)):
        cells, out = torch.zeros(size), torch.ones(entries)
        backend.fill_cells(values, seed, cells)
        backend.add_cells(cells, seed, out, 0.5)
        sketches, outs = [*sketches, cells], [*outs, out]
    for expected, out in zip(sketches[1:], outs[1:], strict=True):
        torch.testing.assert_close(expected, sketches[0])
        torch.testing.assert_close(out, outs[0])


def test_cells_and_signs_are_evenly_used():
    ones, cells = torch.ones(100_000), torch.zeros(10)
    places, signs = reference.hashed(ones, 7, 10)
    counts = torch.bincount(places, minlength=10)
    assert ((counts - 10_000).abs() < 5 * 95).all()
    assert abs(float(signs.sum())) < 5 * 317
    sketch.fill_cells(ones, 7, cells)
    torch.testing.assert_close(cells, torch.zeros(10).index_add_(0, places, signs))
