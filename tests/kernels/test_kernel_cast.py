"""Rounding to sixteen bits: all backends, against PyTorch's casts of whole vectors."""

import pytest
import torch
from support.backends import every_backend
from torch import Generator, Tensor

each_backend = every_backend("cast")
SCALES = [2.0**-126, 2.0**-13, 1.0, 2.0**60]


def values(seed: int = 0) -> Tensor:
    """Returns values of all sizes: normal and denormal halves, ties, zeros of both signs."""
    spread = torch.randn(300_001, generator=Generator().manual_seed(seed))
    spread *= torch.logspace(-9, 1, len(spread))
    ties = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25, 0.0, -0.0])
    return torch.cat([spread, ties, 1 + 2.0**-8 + 0 * ties, 1 + 3 * 2.0**-8 + 0 * ties])


@each_backend
@pytest.mark.parametrize("scale", SCALES)
def test_halves_are_those_of_pytorch(backend, scale):
    wide = values() * scale
    halves, largest = backend.to_half(wide, scale)
    assert halves.view(torch.int16).equal((wide / scale).half().view(torch.int16))
    assert largest == float(wide.abs().max())


@each_backend
def test_brains_are_those_of_pytorch(backend):
    halves, largest = backend.to_brain(values())
    assert halves.view(torch.int16).equal(values().bfloat16().view(torch.int16))
    assert largest == float(values().abs().max())


@each_backend
@pytest.mark.parametrize("scale", [None, *SCALES[1:]])
def test_what_is_kept_is_what_rounding_lost(backend, scale):
    unit = scale or 1.0
    residual, added = values() * unit, values(1) * unit
    total = residual + added
    halves, largest = (
        backend.add_to_half(residual, added, scale)
        if scale
        else backend.add_to_brain(residual, added)
    )
    sent = halves.float() * unit
    assert halves.equal((total / unit).to(halves.dtype))
    assert (sent + residual).equal(total)
    assert residual.equal(total - sent)
    assert largest == float(total.abs().max())


@each_backend
def test_a_half_out_of_reach_is_the_largest(backend):
    wide = torch.tensor([1e9, -1e9, 65519.0, 1.0])
    halves, largest = backend.to_half(wide, 1.0)
    assert halves.tolist() == [65504, -65504, 65504, 1]
    assert largest == 1e9
    residual = torch.zeros(4)
    backend.add_to_half(residual, wide, 1.0)
    assert residual.equal(wide - halves.float())


@each_backend
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 140_000, 300_000])
def test_what_is_no_number_shows_in_the_largest(backend, bad, place):
    wide = torch.zeros(300_001)
    wide[place] = bad
    for _, largest in (
        backend.to_half(wide, 1.0),
        backend.to_brain(wide),
        backend.add_to_half(torch.zeros_like(wide), wide, 1.0),
        backend.add_to_brain(torch.zeros_like(wide), wide),
    ):
        assert not largest < float("inf")
