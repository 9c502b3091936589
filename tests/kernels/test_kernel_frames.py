"""Frames of several workers, added in one launch: to the bits of one after the other."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from support.backends import Backend, every_backend
from support.draws import normal
from torch import Tensor

from atomo.kernels import powers, quantise, sign
from atomo.kernels.quantise import EUCLIDEAN, FORMS
from atomo.kernels.rows import joined, stacked

CPU = torch.device("cpu")
SIZES = [33, 5003]  # not a whole tile; several, and a shorter one whose row begins at no multiple
FORM, MOST, BUCKET = FORMS[1], 15, 512
every_size = pytest.mark.parametrize("n", SIZES)


def one_by_one(backend: Backend) -> Backend:
    """Returns the backend that adds frames one after the other: Triton's bits are numba's."""
    return Backend(backend.kernel, "reference" if backend.name == "reference" else "cpu")


def levels(n: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Returns symbols, escapes and norms of three frames: some levels of the first and the third
    escape."""
    result = []
    for seed, far in enumerate(([3, n - 1], [], [n // 2])):
        values, norms = normal(n, seed=seed), torch.empty(-(-n // BUCKET))
        values[far] = 40.0
        packed = quantise.quantise(values, norms, BUCKET, EUCLIDEAN, MOST, FORM, seed)
        assert packed is not None
        assert bool(len(packed[1])) == bool(far)
        result.append((*packed, norms))
    symbols, escapes, norms = zip(*result, strict=True)
    return [*symbols], [*escapes], [*norms]


@every_backend("quantise")
@every_size
def test_levels_of_several_frames(backend, n):
    symbols, escapes, norms = levels(n)
    out, expected = normal(n, seed=9), normal(n, seed=9)
    for parts in zip(symbols, escapes, norms, strict=True):
        one_by_one(backend).add_levels(*parts, BUCKET, MOST, FORM, expected, 0.3)
    rows = stacked(symbols, CPU), [part.to(backend.device) for part in escapes], stacked(norms, CPU)
    backend.add_all_levels(*rows, BUCKET, MOST, FORM, out, 0.3)
    assert out.equal(expected)


@every_backend("quantise")
def test_symbols_are_counted_frame_by_frame(backend):
    symbols = stacked([torch.tensor([1, 9, 9, 2] * 333, dtype=torch.uint8),
                       torch.full((1332,), 3, dtype=torch.uint8)], CPU)  # fmt: skip
    assert backend.largest_and_counts(symbols, 9) == (9, [666, 0])


@every_backend("powers")
@every_size
def test_powers_of_several_frames(backend, n):
    frames = [powers.pack_powers(normal(n, seed=seed), seed)[:2] for seed in range(3)]
    symbols, words = zip(*frames, strict=True)
    scales = [0.1, 0.5, 2.0**-80]
    out, expected = normal(n, seed=9), normal(n, seed=9)
    for parts, scale in zip(frames, scales, strict=True):
        one_by_one(backend).add_powers(*parts, expected, scale)
    backend.add_all_powers(stacked(symbols, CPU), stacked(words, CPU), out, scales)
    assert out.equal(expected)


@every_backend("sign")
@every_size
def test_signs_of_several_frames(backend, n):
    words, units = [sign.pack_signs(normal(n, seed=seed))[0] for seed in range(3)], [0.1, 0.0, 3e-4]
    out, expected = normal(n, seed=9), normal(n, seed=9)
    for frame, unit in zip(words, units, strict=True):
        one_by_one(backend).add_signs(frame, unit, -unit, expected)
    backend.add_all_signs(stacked(words, CPU), units, out)
    assert out.equal(expected)


@every_backend("sign")
@every_size
@pytest.mark.parametrize("row", [7, 6000])
def test_two_means_of_several_frames(backend, n, row):
    frames = [sign.add_pack_means(normal(n, seed=seed), None, row) for seed in range(3)]
    out, expected = normal(n, seed=9), normal(n, seed=9)
    for words, means in frames:
        one_by_one(backend).add_row_signs(words, means, row, 0.3, expected)
    words, means = (stacked(parts, CPU) for parts in zip(*frames, strict=True))
    backend.add_all_row_signs(words, means, row, 0.3, out)
    assert out.equal(expected)


class Launches:
    """A kernel that counts its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.count = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        self.count += 1
        return self.kernel[grid]


@pytest.mark.parametrize("idea", ["quantise", "powers", "sign"])
def test_all_frames_take_one_launch(idea, monkeypatch):
    n = 4096  # whole tiles: the remainder has a launch of its own
    backend = import_module(f"atomo.kernels.{idea}.cuda")
    launches = Launches(backend.add_tiles)
    monkeypatch.setattr(backend, "add_tiles", launches)
    rows, words, out = (
        torch.zeros(5, n, dtype=torch.uint8),
        torch.zeros(5, n // 32).int(),
        normal(n),
    )
    if torch.cuda.is_available():
        rows, words, out = rows.cuda(), words.cuda(), out.cuda()
    {
        "quantise": lambda: backend.add_all_levels(
            rows[:, : n // 2],
            [words[0, :0].short()] * 5,
            words[:, :8].float(),
            512,
            15,
            FORM,
            out,
            1.0,
        ),
        "powers": lambda: backend.add_all_powers(rows, words, out, [1.0] * 5),
        "sign": lambda: backend.add_all_signs(words, [1.0] * 5, out),
    }[idea]()
    assert launches.count == 1


def test_what_is_wrong_with_one_frame_is_refused_before_any_is_added():
    symbols, escapes, norms = levels(1000)
    out, sizes = normal(1000), (BUCKET, MOST, FORM)
    before = out.clone()
    moved = [escapes[0][:2], torch.cat([escapes[0][2:], escapes[1]]), escapes[2]]  # as many in all
    for bad, message in (
        ((symbols, moved, norms), "2 levels"),
        (([*symbols[:2], torch.full_like(symbols[2], 226)], escapes, norms), "up to 226"),
        ((symbols, escapes, [*norms[:2], norms[2][:1]]), "1 norms"),
    ):
        with pytest.raises(ValueError, match=message):
            quantise.add_all_levels(*bad, *sizes, out, 0.5)
    assert out.equal(before)


def test_frames_are_rows_that_begin_at_multiples_and_one_alone_is_no_copy():
    vectors = [torch.arange(start, start + 5) for start in (1, 7)]
    rows = stacked(vectors, CPU)
    assert rows.tolist() == [[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]]
    assert rows.stride() == (16, 1)
    assert stacked(vectors[:1], CPU).data_ptr() == vectors[0].data_ptr()
    parts = joined([vectors[0], vectors[0][:0], vectors[1][:2]], CPU)
    assert [part.tolist() for part in parts] == [[1, 2, 3, 4, 5], [], [7, 8]]
