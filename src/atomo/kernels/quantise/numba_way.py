"""Stochastic rounding to a few levels, in numba. Contracts: `kernels/quantise`.

Byte j of a tile holds entry j of each of its rows, so that neither packing nor unpacking ever moves
an entry between vector lanes.
"""

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
    Form,
    room_for_escapes,
    symbol_count,
)
from atomo.kernels.random.numba_way import mix, random_words
from atomo.kernels.select.numba_way import most_bits

__all__ = ["add_levels", "largest_and_count", "moments", "quantise"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Levels = NDArray[np.int16]
Bits = NDArray[np.int32]
BLOCK = 4096
U8, U16 = np.uint32(8), np.uint32(16)
STEP = np.float32(2.0**-24)


def quantise(
    values: Tensor, norms: Tensor, bucket: int, kind: int, most: int, form: Form, seed: int
) -> tuple[Tensor, Tensor] | None:
    symbols = torch.empty(symbol_count(len(values), form), dtype=torch.uint8)
    escapes = np.empty(room_for_escapes(len(values), most, form), np.int16)
    escaped = fill_levels(
        values.numpy(), norms.numpy(), bucket, kind, most, form.base, form.digits,
        np.uint64(seed), symbols.numpy(), escapes,
    )  # fmt: skip
    if escaped == -2:
        raise ValueError("NaN, infinity, or a norm beyond float32")
    return None if escaped < 0 else (symbols, torch.from_numpy(escapes[:escaped].copy()))


def largest_and_count(symbols: Tensor, code: int) -> tuple[int, int]:
    largest, count = top_and_count(symbols.numpy(), code)
    return int(largest), int(count)


def add_levels(
    symbols: Tensor,
    escapes: Tensor,
    norms: Tensor,
    bucket: int,
    most: int,
    form: Form,
    out: Tensor,
    scale: float,
) -> None:
    parts = symbols.numpy(), escapes.numpy(), norms.numpy()
    add_tiles(*parts, bucket, most, form.base, form.digits, out.numpy(), scale)


def moments(values: Tensor) -> tuple[float, float]:
    largest, squares = squares_and_most(values.numpy())
    return float(largest), float(squares)


@jit_sum
def squares_of(values: Floats) -> float:
    """The sum of squares."""
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@jit
def as_float(bits: np.int32) -> float:
    """The float32 with these bits."""
    value: float = np.array([bits], np.int32).view(np.float32)[0]
    return value


@jit
def squares_and_most(values: Floats) -> tuple[float, float]:
    """The largest magnitude and the sum of squares."""
    most, squares = np.int32(0), 0.0
    for start in range(0, values.size, BLOCK):  # both while it is in the cache
        part = values[start : start + BLOCK]
        most = max(most, most_bits(part.view(np.int32)))
        squares += squares_of(part)
    return as_float(most), squares


@jit
def norm_of(values: Floats, kind: int) -> float:
    """The norm of a bucket; not finite where an entry is not, or where it leaves float32."""
    if kind == EUCLIDEAN:
        return np.float64(np.sqrt(squares_of(values)))
    return np.float64(as_float(most_bits(values.view(np.int32))))


@jit
def round_levels(values: Floats, words: Words, norm: float, most: int, levels: Levels) -> None:
    """Levels = sign * floor(|value| * most / norm + uniform), which never exceeds `most`."""
    up = 1.0
    if norm < TINY:
        up = LIFT_TINY
    elif norm > HUGE:
        up = LIFT_HUGE
    lift, factor = np.float32(up), np.float32(most / (np.float64(norm) * up))
    top = np.int32(most)
    for i in range(values.size):
        uniform = np.float32(np.int32(words[i] >> U8)) * STEP
        level = np.int32(np.abs(values[i]) * lift * factor + uniform)
        level = min(level, top)
        levels[i] = -level if values[i] < np.float32(0) else level


@jit
def fill_levels(
    values: Floats,
    norms: Floats,
    bucket: int,
    kind: int,
    most: int,
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
    for tile in range((values.size + tile_size - 1) // tile_size):
        low = tile * tile_size
        high = min(low + tile_size, values.size)
        random_words(mix(np.uint64(seed) ^ mix(np.uint64(tile))), words)
        p = low
        while p < high:
            number = p // bucket
            end = min((number + 1) * bucket, high)
            if kind and p == number * bucket:
                norms[number] = norm_of(values[p : p + bucket], kind)
            norm = norms[number]
            if not np.isfinite(norm):
                return -2
            part = levels[p - low : end - low]
            if norm > 0:
                round_levels(values[p:end], words[p - low : end - low], norm, most, part)
            else:
                part[:] = 0
            p = end
        columns = (high - low + digits - 1) // digits
        levels[high - low :] = 0
        packed = symbols[tile * COLUMNS : tile * COLUMNS + columns]
        far = pack_tile(levels, columns, base, digits, packed)
        if far:
            escaped = escape_tile(levels, columns, base, digits, packed, escapes, escaped)
            if escaped < 0:
                return -1
    return escaped


@jit
def pack_tile(levels: Levels, columns: int, base: int, digits: int, packed: Bytes) -> bool:
    """Digits to bytes. Returns whether a level is out of their reach."""
    reach = base // 2
    most = np.int16(0)
    for i in range(digits * columns):
        most = max(most, abs(levels[i]))
    packed[:] = 0
    unit = 1
    for digit in range(digits):
        row = levels[digit * columns : (digit + 1) * columns]
        for j in range(columns):
            packed[j] = np.uint8(packed[j] + (row[j] + reach) * unit)
        unit *= base
    return int(most) > reach


@jit
def escape_tile(
    levels: Levels,
    columns: int,
    base: int,
    digits: int,
    packed: Bytes,
    escapes: Levels,
    escaped: int,
) -> int:
    """Moves the entries of bytes that cannot hold them to `escapes`; -1 where these are full."""
    reach = base // 2
    for j in range(columns):
        far = False
        for digit in range(digits):
            far = far or abs(levels[digit * columns + j]) > reach
        if far:
            if escaped + digits > escapes.size:
                return -1
            packed[j] = base**digits
            for digit in range(digits):
                escapes[escaped] = levels[digit * columns + j]
                escaped += 1
    return escaped


@jit
def top_and_count(symbols: Bytes, code: int) -> tuple[int, int]:
    """The largest symbol, and how many equal `code`."""
    most, count = np.uint8(0), 0
    for i in range(symbols.size):
        most = max(most, symbols[i])
        count += symbols[i] == code
    return int(most), count


@jit
def add_tiles(
    symbols: Bytes,
    escapes: Levels,
    norms: Floats,
    bucket: int,
    most: int,
    base: int,
    digits: int,
    out: Floats,
    scale: float,
) -> None:
    """Adds to `out` what has been checked to fit."""
    tile_size = digits * COLUMNS
    levels = np.zeros(tile_size, np.int16)
    reach, taken, escape = base // 2, 0, base**digits
    inverse = np.uint32((1 << 16) // base + 1)
    rest = np.empty(COLUMNS, np.uint32)
    for tile in range((out.size + tile_size - 1) // tile_size):
        low = tile * tile_size
        high = min(low + tile_size, out.size)
        columns = (high - low + digits - 1) // digits
        packed = symbols[tile * COLUMNS : tile * COLUMNS + columns]
        far = np.uint8(0)
        for j in range(columns):
            rest[j] = packed[j]
            far = max(far, packed[j])
        for digit in range(digits):
            row = levels[digit * columns : (digit + 1) * columns]
            for j in range(columns):
                above = np.uint32(rest[j] * inverse) >> U16
                row[j] = np.int16(np.int32(rest[j]) - np.int32(above) * base - reach)
                rest[j] = above
        if far == escape:
            for j in range(columns):
                if packed[j] == escape:
                    for digit in range(digits):
                        levels[digit * columns + j] = escapes[taken]
                        taken += 1
        p = low
        while p < high:
            number = p // bucket
            end = min((number + 1) * bucket, high)
            unit = np.float32(np.float64(norms[number]) * scale / most)
            part, target = levels[p - low : end - low], out[p:end]
            for i in range(target.size):
                target[i] += np.float32(part[i]) * unit
            p = end
