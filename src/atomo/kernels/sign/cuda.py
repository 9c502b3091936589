"""One bit an entry, and the residual in the same pass, in Triton. Contracts: `kernels/sign`.

A program has a tile: a block of 32 rows. It shifts their bits to their places, and adds them down
the columns. Whole tiles and a last tile with shorter rows are two launches of the same kernel.
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import filled
from atomo.kernels.sign import TILE, WIDTH, word_count
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = [
    "add_all_row_signs",
    "add_all_signs",
    "add_pack_means",
    "add_pack_sum",
    "add_row_signs",
    "add_signs",
    "pack_signs",
]

BLOCK: Final = 1024
PIECE: Final = 64 * BLOCK  # entries of a run that one program sums


def pack_signs(values: Tensor) -> tuple[Tensor, float]:
    words, parts = packed(values, None)
    return words, float(parts[:, 0].max())


def add_pack_sum(values: Tensor, added: Tensor | None = None) -> tuple[Tensor, float, float, int]:
    words, parts = packed(values, added)
    total, size, negative = parts[:, 1:].sum(0).tolist()  # the only wait for the device
    return words, (total + size) / 2, (total - size) / 2, len(values) - int(negative)


def packed(values: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    """Packs the words, and returns for each tile the largest magnitude, the two sums and the number
    of negative entries.
    """
    words = torch.empty(word_count(len(values)), dtype=torch.int32, device=values.device)
    parts = values.new_empty((len(values) + TILE - 1) // TILE, 4, dtype=torch.float64)
    addend = values if added is None else added
    for first, tiles, width in launches(len(values)):
        arguments = values, addend, words, parts, first, len(values), width
        constants = {"ADD": added is not None, "WHOLE": first == 0 and tiles * TILE <= len(values)}
        pack_tiles[(tiles,)](*arguments, **constants, WIDTH=WIDTH, **EXACT)
    return words, parts


def launches(entries: int) -> list[tuple[int, int, int]]:
    """Yields the first tile, the number of tiles and the width of their rows: whole tiles, and a
    last one.
    """
    whole, remainder = divmod(entries, TILE)
    candidates = [(0, whole, WIDTH), (whole, min(remainder, 1), (remainder + 31) // 32)]
    return [launch for launch in candidates if launch[1]]


@device_code
def places_of(tile, entries, width, WHOLE: tl.constexpr, WIDTH: tl.constexpr):
    """Returns the positions of the entries of a tile, and a mask of the positions that exist."""
    rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, WIDTH)[None, :]
    if WHOLE:  # a mask that is known lets loads and stores be 16 bytes wide
        places = tile * 32 * WIDTH + rows * WIDTH + columns
        inside = tl.full([32, WIDTH], True, tl.int1)
    else:
        places = tile * 32 * WIDTH + rows * width + columns
        inside = (columns < width) & (places < entries)
    return places, inside


@device_code
def pack_tiles(
    values,
    added,
    words,
    parts,
    first,
    entries,
    width,
    ADD: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tile = first + tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, 32)[:, None]
    places, inside = places_of(tile, entries, width, WHOLE, WIDTH)
    entry = tl.load(values + places, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        entry += tl.load(added + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(values + places, entry, mask=inside)
    # The sign of row i at bit i: columns of different bits add up to their words without carries.
    signs = entry.to(tl.int32, bitcast=True).to(tl.uint32, bitcast=True) >> 31
    sign_words = tl.sum(signs << rows.to(tl.uint32), 0).to(tl.int32, bitcast=True)
    column = tl.arange(0, WIDTH)
    tl.store(words + tile * WIDTH + column, sign_words, mask=column < width)
    wide = entry.to(tl.float64)
    magnitudes = tl.abs(entry).to(tl.int32, bitcast=True)  # ordered, with NaN above infinity
    peak = tl.max(tl.max(magnitudes, 1), 0).to(tl.float32, bitcast=True)
    # A program's own row of sums, which the host adds up: atomic sums would have no fixed order.
    tl.store(parts + 4 * tile, peak.to(tl.float64))
    tl.store(parts + 4 * tile + 1, tl.sum(tl.sum(wide, 1), 0))
    tl.store(parts + 4 * tile + 2, tl.sum(tl.sum(tl.abs(wide), 1), 0))
    tl.store(parts + 4 * tile + 3, tl.sum(tl.sum(signs.to(tl.int32), 1), 0).to(tl.float64))


def add_signs(words: Tensor, positive: float, negative: float, out: Tensor) -> None:
    unpack(words[None], filled([positive, negative], out), len(out), out)


def add_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    add_all_row_signs(words[None], means[None], row, scale, out)


def add_all_signs(words: Tensor, units: Sequence[float], out: Tensor) -> None:
    means = filled([value for unit in units for value in (unit, -unit)], out)
    unpack(words, means, len(out), out)


def add_all_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    unpack(words, means * scale, row, out)


def unpack(words: Tensor, means: Tensor, row: int, out: Tensor) -> None:
    """Adds the mean of its sign and run to each entry, for one frame after the other."""
    several = len(words), words.stride(0), 2 * -(-len(out) // row)
    for first, tiles, width in launches(len(out)):
        arguments = words, means, out, first, len(out), width, row, *several
        constants = {"ONE": row >= len(out), "WHOLE": first == 0 and tiles * TILE <= len(out)}
        add_tiles[(tiles,)](*arguments, **constants, WIDTH=WIDTH, **EXACT)


@device_code
def add_tiles(
    words,
    means,
    out,
    first,
    entries,
    width,
    row,
    frames,
    stride,
    runs,
    ONE: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tile = first + tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, 32)[:, None]
    places, inside = places_of(tile, entries, width, WHOLE, WIDTH)
    column = tl.arange(0, WIDTH)
    word_at = words + tile * WIDTH + column
    entry = tl.load(out + places, mask=inside, other=0.0)
    for _ in range(frames):
        word = tl.load(word_at, mask=column < width, other=0)
        negative = (word[None, :] >> rows) & 1
        if ONE:
            mean = tl.where(negative == 1, tl.load(means + 1), tl.load(means))
        else:
            mean = tl.load(means + 2 * (places // row) + negative, mask=inside, other=0.0)
        entry += mean
        word_at += stride
        means += runs
    tl.store(out + places, entry, mask=inside)


def add_pack_means(values: Tensor, added: Tensor | None, row: int) -> tuple[Tensor, Tensor]:
    words, _ = packed(values, added)
    row = min(row, len(values))
    runs, pieces = -(-len(values) // row), -(-row // PIECE)
    parts = values.new_empty(runs, pieces, 3, dtype=torch.float64)
    # Short runs share a program, and long runs are cut in pieces: a program always has BLOCK lanes.
    lanes = min(1 << (row - 1).bit_length(), BLOCK)
    programs = -(-runs * pieces // (BLOCK // lanes))
    sizes = len(values), row, pieces, runs * pieces, -(-min(row, PIECE) // lanes)
    constants = {"PIECE": PIECE, "RUNS": BLOCK // lanes, "LANES": lanes}
    sum_runs[(programs,)](values, parts, *sizes, **constants, **EXACT)
    total, size, negative = parts.sum(1).unbind(1)
    ends = torch.arange(1, runs + 1, device=values.device).mul_(row).clamp_(max=len(values))
    count = ends.diff(prepend=ends.new_zeros(1))
    above = (total + size) / 2 / (count - negative).clamp_min(1)
    below = (total - size) / 2 / negative.clamp_min(1)
    return words, torch.stack([above, below], 1).flatten().float()


@device_code
def sum_runs(
    values,
    parts,
    entries,
    row,
    pieces,
    count,
    blocks,
    PIECE: tl.constexpr,
    RUNS: tl.constexpr,
    LANES: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    run = number // pieces
    start = run * row + number % pieces * PIECE
    stop = tl.minimum(tl.minimum(start + PIECE, (run + 1) * row), entries)
    total = tl.zeros([RUNS, LANES], tl.float64)
    size = tl.zeros([RUNS, LANES], tl.float64)
    negative = tl.zeros([RUNS, LANES], tl.int32)
    for block in range(blocks):
        places = start[:, None] + block * LANES + tl.arange(0, LANES)[None, :]
        entry = tl.load(values + places, mask=places < stop[:, None], other=0.0).to(tl.float32)
        wide = entry.to(tl.float64)
        total += wide
        size += tl.abs(wide)
        negative += (entry.to(tl.int32, bitcast=True) >> 31) & 1
    inside = number < count
    tl.store(parts + 3 * number, tl.sum(total, 1), mask=inside)
    tl.store(parts + 3 * number + 1, tl.sum(size, 1), mask=inside)
    tl.store(parts + 3 * number + 2, tl.sum(negative, 1).to(tl.float64), mask=inside)
