"""The largest entries within tiles, in all backends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend, backends, every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels.tiles import Tiling, largest, tile_sizes

each_backend = every_backend("tiles")
SIDES = st.integers(1, 40)


def sorted_by_hand(values: Tensor, tiling: Tiling, counts: Tensor) -> list[int]:
    """Returns the indices that sorting each tile gives."""
    rows, columns, height, width = tiling
    chosen: list[int] = []
    for down in range(counts.shape[0]):
        for across in range(counts.shape[1]):
            places = [
                row * columns + column
                for row in range(down * height, min((down + 1) * height, rows))
                for column in range(across * width, min((across + 1) * width, columns))
                if values[row * columns + column] != 0
            ]
            places.sort(key=lambda place: -abs(float(values[place])))
            chosen += places[: int(counts[down, across])]
    return sorted(chosen)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 2**32), st.floats(0.01, 1))
def test_every_backend_selects_what_sorting_each_tile_gives(rows, columns, height, width, seed, r):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-6, 7, (rows * columns,), generator=generator) / 4  # many are equal
    added = torch.randint(-2, 3, values.shape, generator=generator) / 4
    tiling = Tiling(rows, columns, height, width)
    counts = (tile_sizes(tiling) * r).long().clamp_min(1)
    expected = sorted_by_hand(values + added, tiling, counts)
    for backend in backends("tiles", interpreted=False):
        whole = values.clone()
        indices, entries = backend.largest(whole, added.clone(), tiling, counts)
        assert indices.tolist() == expected
        assert whole.equal(values + added)
        assert entries.equal(whole[indices])


@each_backend
def test_a_tile_after_a_louder_one_sends_as_many(backend: Backend):
    """The candidates of a tile are sought near the last tile's, and then everywhere."""
    values = normal(128, 256) * torch.tensor([1.0, 1e-20, 1e20, 0.0]).repeat_interleave(64)
    tiling = Tiling(128, 256, 64, 64)
    counts = torch.full((2, 4), 64)
    indices, _ = backend.largest(values.flatten(), None, tiling, counts)
    rows, columns = indices // 256, indices % 256
    sent = torch.bincount(rows // 64 * 4 + columns // 64, minlength=8)
    assert sent.tolist() == [64, 64, 64, 0, 64, 64, 64, 0]


@each_backend
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(backend: Backend, value):
    values = normal(70, 70)
    values[69, 69] = value
    tiling = Tiling(70, 70, 64, 64)
    with pytest.raises(ValueError, match="NaN or infinity"):
        backend.largest(values.flatten(), None, tiling, torch.ones(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_selected_as_its_copy(dtype):
    values, tiling = normal(5000).to(dtype), Tiling(50, 100, 16, 16)
    counts = tile_sizes(tiling).div(8).long().clamp_min(1)
    indices, entries = largest(values, None, tiling, counts)
    expected = largest(values.float(), None, tiling, counts)
    assert indices.equal(expected[0])
    assert entries.equal(expected[1])
