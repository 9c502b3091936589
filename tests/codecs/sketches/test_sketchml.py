"""SketchML against a slow reading of the paper: quantiles by counting, a sketch of dictionaries."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter

import numpy as np
import pytest
import torch
from support.draws import seeded
from support.selection import slow_but
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.codecs.sketches.sketchml import Sketched
from atomo.errors import CodecError
from atomo.kernels import entropy

MASK = 2**32 - 1
Sketch = dict[tuple[int, ...], int]


def heavy(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, generator=seeded(seed)).pow(3) * 1e-3


def halves(values: Tensor) -> list[int]:
    """Returns the upper half of each magnitude."""
    return [int(b) >> 16 & 0x7FFF for b in values.numpy().view(np.uint32)]


def upper(half: int) -> float:
    """Returns the magnitude with this upper half and a lower half of zeros."""
    return float(np.array([half << 16], np.uint32).view(np.float32)[0])


def numbered(values: Tensor) -> list[int]:
    """Returns the quantile of each magnitude among those of one sign: 0 to 255."""
    parts = halves(values)
    order = sorted(parts)
    ranks = [(bisect_left(order, h) + bisect_right(order, h)) / 2 for h in parts]
    return [min(255, int(256 * rank / len(parts))) for rank in ranks]


def bucket_means(values: Tensor, numbers: list[int]) -> dict[int, float]:
    """Returns the decoded value of each quantile of one sign: its mean, at most twice its lower
    end."""
    names, order = halves(values), sorted(halves(values))
    lowest: dict[int, int] = {}
    for half in range(1, max(names) + 1):  # a quantile begins with the first half that it may hold
        rank = (bisect_left(order, half) + bisect_right(order, half)) / 2
        lowest.setdefault(min(255, int(256 * rank / len(order))), half)
    members: dict[int, list[float]] = {}
    for value, number in zip(values.abs().tolist(), numbers, strict=True):
        members.setdefault(number, []).append(value)
    return {n: min(math.fsum(v) / len(v), 2 * upper(lowest[n])) for n, v in members.items()}


def hashed(index: int, key: int, width: int) -> int:
    x = index * 0x9E3779B9 & MASK ^ key
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    return (x ^ x >> 15) * width >> 32


def slow_decode(gradient: Tensor, share: float, seed: int) -> Tensor:
    """Encodes and decodes entries of which none is zero."""
    decoded, means = torch.zeros(len(gradient)), {}
    numbers, groups = [0] * len(gradient), [0] * len(gradient)
    for side, sign in enumerate((-1, 1)):
        places = (gradient * sign > 0).nonzero().squeeze(1).tolist()
        if places:
            result = numbered(gradient[places])
            means[side] = bucket_means(gradient[places], result)
            for place, number in zip(places, result, strict=True):
                numbers[place], groups[place] = number, 8 * side + number // 32
    keys = (seed & MASK, seed >> 32 & MASK)
    cells: Sketch = {}

    blocks = [Counter(groups[start : start + 8192]) for start in range(0, len(groups), 8192)]

    def cell_of(i: int, row: int) -> tuple[int, ...]:
        width = math.ceil(blocks[i // 8192][groups[i]] * share)
        return i // 8192, groups[i], row, hashed(i, keys[row], width)

    for i, number in enumerate(numbers):
        for row in (0, 1):
            cell = cell_of(i, row)
            cells[cell] = min(cells.get(cell, 255), number % 32)
    for i, group in enumerate(groups):
        read = 32 * (group % 8) + max(cells[cell_of(i, row)] for row in (0, 1))
        decoded[i] = means[group // 8][read] * (1 if group >= 8 else -1)
    return decoded


@pytest.mark.parametrize("count", slow_but([1, 5, 1025], [1, 2, 5, 1023, 1025, 9000]))
@pytest.mark.parametrize("share", slow_but([0.2], [0.05, 0.2, 2.0]))
def test_decodes_to_what_the_paper_s_steps_give(count, share):
    gradient, codec = heavy(count), make_codec(f"sketchml(cells={share})")
    payload = codec.encode(gradient, seeded(4))
    decoded = codec.decode(payload, gradient.shape)
    expected = slow_decode(gradient, share, int(payload.head[1]))
    torch.testing.assert_close(decoded, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("cells", [1e-6, 0.01, 0.2, 4])
@pytest.mark.parametrize("count", [50, 700_000])
def test_signs_never_turn_and_no_entry_is_farther_off_than_zero(cells, count):
    gradient, codec = heavy(count), make_codec(f"sketchml(cells={cells})")
    gradient[::7] = 0
    decoded = codec.decode(codec.encode(gradient, seeded(0)), gradient.shape)
    assert (decoded * gradient >= 0).all()
    assert not decoded[gradient == 0].any()
    assert ((decoded - gradient).abs() <= gradient.abs() * (1 + 1e-6)).all()


def test_collisions_only_ever_make_entries_smaller():
    gradient, outs = heavy(30_000), []
    for cells in (0.01, 0.1, 4):
        codec = make_codec(f"sketchml(cells={cells})")
        outs.append(codec.decode(codec.encode(gradient, seeded(0)), gradient.shape).abs())
    exact = torch.zeros(30_000)
    for sign in (-1, 1):
        places = (gradient * sign > 0).nonzero().squeeze(1)
        numbers = numbered(gradient[places])
        means = bucket_means(gradient[places], numbers)
        exact[places] = torch.tensor([means[n] for n in numbers])
    for out in outs:
        assert (out <= exact * (1 + 1e-6)).all()
    errors = [float((gradient.abs() - out).norm()) for out in outs]
    assert errors[0] > errors[1] > errors[2]


def test_what_is_kept_and_what_is_sent_is_what_came_in():
    codec, gradient, residual = make_codec("sketchml"), heavy(5000), heavy(5000, seed=2)
    gradient[::3], residual[::3] = 0, 0
    whole = residual + gradient
    payload = codec.encode_residual(gradient, residual, seeded(0))
    torch.testing.assert_close(codec.decode(payload, whole.shape) + residual, whole)
    assert payload.means.equal(codec.encode(whole, seeded(0)).means)


def damaged(payload: Sketched, **changes: Tensor) -> Sketched:
    return Sketched(**(vars(payload) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"head": torch.tensor([-1, 5])},
        {"head": torch.tensor([501, 5])},
        {"head": torch.tensor([499, 5])},
        {"head": torch.tensor([2**62, 5])},
        {"head": torch.tensor([500])},
        {"cell_count": torch.tensor([2**40])},
        {"cell_count": torch.tensor([0])},
        {"cell_count": torch.tensor([], dtype=torch.int64)},
        {"means": torch.zeros(3)},
        {"groups": torch.zeros(9, dtype=torch.int32)},
        {"places": torch.zeros(9, dtype=torch.uint8)},
    ],
)
def test_a_damaged_payload_is_refused(changes):
    codec, total = make_codec("sketchml"), torch.ones(500)
    payload = codec.encode(heavy(500), seeded(0))
    with pytest.raises(CodecError, match="sketchml"):
        codec.add_decoded(damaged(payload, **changes), total)
    assert total.equal(torch.ones(500))


@pytest.mark.parametrize("extra", [-1, -150, 1])
def test_cells_that_are_not_those_of_the_groups_are_refused(extra):
    codec, total = make_codec("sketchml"), torch.ones(500)
    payload = codec.encode(heavy(500), seeded(0))
    count = int(payload.cell_count) + extra
    cells = entropy.compress(torch.zeros(count, dtype=torch.uint8))
    with pytest.raises(CodecError, match="cells"):
        codec.add_decoded(damaged(payload, cells=cells, cell_count=torch.tensor([count])), total)
    assert total.equal(torch.ones(500))


def test_any_cells_stay_within_the_means():
    codec = make_codec("sketchml")
    payload = codec.encode(heavy(500), seeded(0))
    payload.cells[5:] = -1  # bytes of 255: no bucket has that number
    decoded = codec.decode(payload, Size((500,)))
    assert set(decoded.tolist()) <= set(payload.means.tolist())
