"""Stochastic rounding to a few levels, several entries to a byte. Contracts: `kernels/quantise`.

The entries go by tiles of `digits` rows of COLUMNS: byte j of a tile holds entry j of each of its
rows, so that neither packing nor unpacking ever moves an entry between vector lanes.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = [
    "add_levels",
    "add_powers",
    "largest_and_count",
    "moments",
    "quantise",
    "round_to_powers",
]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Levels = NDArray[np.int16]
Bits = NDArray[np.int32]
COLUMNS = 512
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
STRIDE, FIRST, SECOND = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
U8, U9, U15, U16 = np.uint32(8), np.uint32(9), np.uint32(15), np.uint32(16)
U23, U31 = np.uint32(23), np.uint32(31)
SIGN_WIDTH = 64
POWERS_TILE = 32 * SIGN_WIDTH
STEP = np.float32(2.0**-24)
TINY, HUGE = 1e-30, 1e30  # norms for which no product of float32 leaves its range or precision


@jit
def mix(x: np.uint64) -> np.uint64:
    """One step of splitmix64."""
    x = np.uint64(x) + GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def random_words(seed: int, tile: int, words: Words) -> None:
    """Fills `words` with the random bits of a tile: a function of seed, tile and place only."""
    key = mix(np.uint64(seed) ^ mix(np.uint64(tile)))
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    for i in range(words.size):
        x = np.uint32(np.uint32(i) * STRIDE) ^ low
        x = np.uint32((x ^ (x >> U16)) * FIRST)
        x = np.uint32(((x ^ (x >> U15)) + high) * SECOND)
        words[i] = x ^ (x >> U16)


@jit
def norm_of(values: Floats, euclidean: bool) -> float:
    """The norm of a bucket; not finite where an entry is not, or where it leaves float32."""
    if euclidean:
        lanes = np.zeros(16)
        whole = values.size // 16 * 16
        for i in range(0, whole, 16):
            for j in range(16):
                lanes[j] += np.float64(values[i + j]) * np.float64(values[i + j])
        total = lanes.sum()
        for i in range(whole, values.size):
            total += np.float64(values[i]) * np.float64(values[i])
        norm: float = np.sqrt(total)
        return norm
    bits = values.view(np.int32)
    most = np.int32(0)
    for i in range(bits.size):
        most = max(most, np.int32(bits[i] & 0x7FFFFFFF))
    largest: float = np.array([most], np.int32).view(np.float32)[0]
    return largest


@jit
def moments(values: Floats) -> tuple[float, float]:
    """The largest magnitude and the sum of squares."""
    lanes = np.zeros(16)
    whole = values.size // 16 * 16
    for i in range(0, whole, 16):
        for j in range(16):
            lanes[j] += np.float64(values[i + j]) * np.float64(values[i + j])
    total = lanes.sum()
    for i in range(whole, values.size):
        total += np.float64(values[i]) * np.float64(values[i])
    return norm_of(values, False), total


@jit
def round_levels(values: Floats, words: Words, norm: float, most: int, levels: Levels) -> None:
    """Levels = sign * floor(|value| * most / norm + uniform), which never exceeds `most`."""
    up = 1.0
    if norm < TINY:
        up = 2.0**100
    elif norm > HUGE:
        up = 2.0**-60
    lift, factor = np.float32(up), np.float32(most / (np.float64(norm) * up))
    top = np.int32(most)
    for i in range(values.size):
        uniform = np.float32(np.int32(words[i] >> U8)) * STEP
        level = np.int32(np.abs(values[i]) * lift * factor + uniform)
        level = min(level, top)
        levels[i] = -level if values[i] < np.float32(0) else level


@jit
def quantise(
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
    """See the façade. `kind`: 0 norms are given, 1 Euclidean, 2 largest magnitude."""
    tile_size = digits * COLUMNS
    levels = np.zeros(tile_size, np.int16)
    words = np.empty(tile_size, np.uint32)
    escaped = 0
    for tile in range((values.size + tile_size - 1) // tile_size):
        low = tile * tile_size
        high = min(low + tile_size, values.size)
        random_words(seed, tile, words)
        p = low
        while p < high:
            number = p // bucket
            end = min((number + 1) * bucket, high)
            if kind and p == number * bucket:
                norms[number] = norm_of(values[p : p + bucket], kind == 1)
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
def largest_and_count(symbols: Bytes, code: int) -> tuple[int, int]:
    """The largest symbol, and how many equal `code`."""
    most, count = np.uint8(0), 0
    for i in range(symbols.size):
        most = max(most, symbols[i])
        count += symbols[i] == code
    return int(most), count


@jit
def add_levels(
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
    """See the façade."""
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


@jit
def round_to_powers(bits: Bits, seed: int, symbols: Bytes) -> None:
    """See the façade.

    A random number added to the mantissa carries into the exponent as often as rounding up should
    happen; so it does for denormals, which go to 0 or 2^-126.
    """
    words = np.empty(POWERS_TILE, np.uint32)
    for tile in range((bits.size + POWERS_TILE - 1) // POWERS_TILE):
        part = bits[tile * POWERS_TILE : (tile + 1) * POWERS_TILE]
        target = symbols[tile * POWERS_TILE : tile * POWERS_TILE + part.size]
        random_words(seed, tile, words)
        for i in range(part.size):
            magnitude = np.int32(part[i] & 0x7FFFFFFF)
            carried = np.uint32(np.uint32(magnitude) + (words[i] >> U9))
            target[i] = np.uint8(carried >> U23)


@jit
def add_powers(symbols: Bytes, words: Words, out: Floats, scale: float) -> None:
    """Adds scale * sign * 2^(symbol - 127); the signs lie as in `kernels/cpu/sign`."""
    factor = np.float32(scale)
    values = np.empty(SIGN_WIDTH, np.uint32)
    numbers = values.view(np.float32)
    for start in range(0, out.size, POWERS_TILE):
        part = out[start : start + POWERS_TILE]
        width = (part.size + 31) // 32
        held = words[start // 32 : start // 32 + width]
        codes = symbols[start : start + part.size]
        for row in range(32):
            target = part[row * width : (row + 1) * width]
            exponents = codes[row * width : (row + 1) * width]
            place = np.uint32(row)
            for j in range(target.size):
                sign = np.uint32(np.uint32(held[j] >> place) << U31)
                values[j] = np.uint32(np.uint32(exponents[j]) << U23) | sign
            for j in range(target.size):
                target[j] += numbers[j] * factor
