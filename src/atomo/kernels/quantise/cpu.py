"""Stochastic rounding to a few levels, in numba. Contracts: `kernels/quantise`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit, jit_sum
from atomo.kernels.quantise import (
    COLUMNS,
    EUCLIDEAN,
    HUGE,
    LIFT_HUGE,
    LIFT_TINY,
    TINY,
    LevelForm,
    room_for_escapes,
    symbol_count,
)
from atomo.kernels.quantise.digits import escape_tile, pack_tile, restore_tile, unpack_tile
from atomo.kernels.random_words.cpu import mix, random_words
from atomo.kernels.selection.cpu import most_bits

__all__ = ["add_all_levels", "add_levels", "largest_and_counts", "moments", "quantise"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Levels = NDArray[np.int16]
BLOCK = 4096
U8 = np.uint32(8)
STEP = np.float32(2.0**-24)


def quantise(
    values: Tensor, norms: Tensor, bucket: int, kind: int, highest: int, form: LevelForm, seed: int
) -> tuple[Tensor, Tensor] | None:
    symbols = torch.empty(symbol_count(len(values), form), dtype=torch.uint8)
    escapes = np.empty(room_for_escapes(len(values), highest, form), np.int16)
    escaped = fill_levels(
        values.float().numpy(), norms.numpy(), bucket, kind, highest, form.base, form.digits,
        np.uint64(seed), symbols.numpy(), escapes,
    )  # fmt: skip
    if escaped == -2:
        raise ValueError("NaN, infinity, or a norm beyond float32")
    return None if escaped < 0 else (symbols, torch.from_numpy(escapes[:escaped].copy()))


def largest_and_counts(symbols: Tensor, code: int) -> tuple[int, list[int]]:
    rows = [top_and_count(row, code) for row in symbols.numpy()]
    return max(int(largest) for largest, _ in rows), [int(count) for _, count in rows]


def add_levels(
    symbols: Tensor,
    escapes: Tensor,
    norms: Tensor,
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Tensor,
    scale: float,
) -> None:
    parts = symbols.numpy(), escapes.numpy(), norms.numpy()
    add_tiles(*parts, bucket, highest, form.base, form.digits, out.numpy(), scale)


def add_all_levels(
    symbols: Tensor,
    escapes: Sequence[Tensor],
    norms: Tensor,
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Tensor,
    scale: float,
) -> None:
    for parts in zip(symbols, escapes, norms, strict=True):
        add_levels(*parts, bucket, highest, form, out, scale)


def moments(values: Tensor) -> tuple[float, float]:
    largest, squares = squares_and_most(values.float().numpy())
    return float(largest), float(squares)


@jit_sum
def squares_of(values: Floats) -> float:
    total = 0.0  # of float64: the square of a float32 neither overflows nor vanishes in it
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@jit
def as_float(bits: np.int32) -> float:
    value: float = np.array([bits], np.int32).view(np.float32)[0]
    return value


@jit
def squares_and_most(values: Floats) -> tuple[float, float]:
    peak, squares = np.int32(0), 0.0
    for start in range(0, values.size, BLOCK):  # both while it is in the cache
        part = values[start : start + BLOCK]
        peak = max(peak, most_bits(part.view(np.int32)))
        squares += squares_of(part)
    return as_float(peak), squares


@jit
def norm_of(values: Floats, kind: int) -> float:
    """Computes the norm of a bucket; not finite if an entry is not, or if the norm overflows
    float32.
    """
    if kind == EUCLIDEAN:
        return np.float64(np.sqrt(squares_of(values)))
    return np.float64(as_float(most_bits(values.view(np.int32))))


@jit
def round_levels(values: Floats, words: Words, norm: float, highest: int, levels: Levels) -> None:
    """Levels = sign * floor(|value| * most / norm + uniform), which never exceeds `highest`."""
    up = 1.0
    if norm < TINY:
        up = LIFT_TINY
    elif norm > HUGE:
        up = LIFT_HUGE
    # Where the norm is tiny or huge, most / norm leaves float32: the values are scaled first, by a
    # power of two, which rounds nothing.
    lift, factor = np.float32(up), np.float32(highest / (np.float64(norm) * up))
    top = np.int32(highest)
    for i in range(values.size):
        uniform = np.float32(np.int32(words[i] >> U8)) * STEP
        level = np.int32(np.abs(values[i]) * lift * factor + uniform)
        level = min(level, top)  # rounding may have made |value| / norm a little more than 1
        levels[i] = -level if values[i] < np.float32(0) else level


@jit
def fill_levels(
    values: Floats,
    norms: Floats,
    bucket: int,
    kind: int,
    highest: int,
    base: int,
    digits: int,
    seed: int,
    symbols: Bytes,
    escapes: Levels,
) -> int:
    """Fills symbols, escapes and, unless they are given, norms.

    Returns:
        How many escaped; -1 where there was no room for them, -2 where a norm is not finite.
    """
    tile_size = digits * COLUMNS
    levels = np.zeros(tile_size, np.int16)
    words = np.empty(tile_size, np.uint32)
    escaped = 0
    # One tile at a time from values to bytes, so that levels and random words stay in the cache.
    for tile in range((values.size + tile_size - 1) // tile_size):
        low = tile * tile_size
        high = min(low + tile_size, values.size)
        random_words(mix(np.uint64(seed) ^ mix(np.uint64(tile))), words)
        if not round_tile(values, norms, bucket, kind, low, high, words, highest, levels):
            return -2
        columns = (high - low + digits - 1) // digits
        levels[high - low :] = 0  # the padding of the last row
        packed = symbols[tile * COLUMNS : tile * COLUMNS + columns]
        if pack_tile(levels, columns, base, digits, packed):  # rare, with a form that fits
            escaped = escape_tile(levels, columns, base, digits, packed, escapes, escaped)
            if escaped < 0:
                return -1
    return escaped


@jit
def round_tile(
    values: Floats,
    norms: Floats,
    bucket: int,
    kind: int,
    low: int,
    high: int,
    words: Words,
    highest: int,
    levels: Levels,
) -> bool:
    """Rounds the levels of a tile, which may share buckets with others; returns True if all norms
    are finite.
    """
    p = low
    while p < high:
        number = p // bucket
        end = min((number + 1) * bucket, high)
        if kind and p == number * bucket:  # the tile in which a bucket begins takes its norm
            norms[number] = norm_of(values[p : p + bucket], kind)
        norm = norms[number]
        if not np.isfinite(norm):
            return False
        part = levels[p - low : end - low]
        if norm > 0:
            round_levels(values[p:end], words[p - low : end - low], norm, highest, part)
        else:
            part[:] = 0
        p = end
    return True


@jit
def top_and_count(symbols: Bytes, code: int) -> tuple[int, int]:
    """Returns the largest symbol, and the number of symbols equal to `code`."""
    largest, count = np.uint8(0), 0
    for i in range(symbols.size):
        largest = max(largest, symbols[i])
        count += symbols[i] == code
    return int(largest), count


@jit
def add_tiles(
    symbols: Bytes,
    escapes: Levels,
    norms: Floats,
    bucket: int,
    highest: int,
    base: int,
    digits: int,
    out: Floats,
    scale: float,
) -> None:
    """Adds levels that have been checked to `out`."""
    tile_size = digits * COLUMNS
    levels = np.zeros(tile_size, np.int16)
    restored = 0
    for tile in range((out.size + tile_size - 1) // tile_size):
        low = tile * tile_size
        high = min(low + tile_size, out.size)
        columns = (high - low + digits - 1) // digits
        packed = symbols[tile * COLUMNS : tile * COLUMNS + columns]
        if unpack_tile(packed, base, digits, levels):
            restored = restore_tile(packed, base, digits, escapes, restored, levels)
        p = low
        while p < high:  # bucket by bucket, of which a tile may hold many or a part of one
            number = p // bucket
            end = min((number + 1) * bucket, high)
            unit = np.float32(np.float64(norms[number]) * scale / highest)
            part, target = levels[p - low : end - low], out[p:end]
            for i in range(target.size):
                target[i] += np.float32(part[i]) * unit
            p = end
