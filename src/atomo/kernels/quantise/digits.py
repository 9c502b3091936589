"""Levels as digits of bytes, and back, in numba. The format: `kernels/quantise`.

Byte j of a tile holds entry j of each of its rows, so that neither packing nor unpacking ever moves
an entry between vector lanes. Levels of either sign are shifted by base // 2 to be digits.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit
from atomo.kernels.quantise import COLUMNS

__all__ = ["escape_tile", "pack_tile", "restore_tile", "unpack_tile"]

Bytes = NDArray[np.uint8]
Levels = NDArray[np.int16]
U16 = np.uint32(16)


@jit
def pack_tile(levels: Levels, columns: int, base: int, digits: int, packed: Bytes) -> bool:
    """Packs levels as digits of bytes; returns True if a level is out of range."""
    reach = base // 2
    largest = np.int16(0)
    for i in range(digits * columns):
        largest = max(largest, abs(levels[i]))
    packed[:] = 0
    unit = 1
    for digit in range(digits):
        row = levels[digit * columns : (digit + 1) * columns]
        # A level out of reach wraps around here; its byte is replaced by the escape afterwards.
        for j in range(columns):
            packed[j] = np.uint8(packed[j] + (row[j] + reach) * unit)
        unit *= base
    return int(largest) > reach


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
            packed[j] = base**digits  # one more than any digits make
            for digit in range(digits):
                escapes[escaped] = levels[digit * columns + j]
                escaped += 1
    return escaped


@jit
def unpack_tile(packed: Bytes, base: int, digits: int, levels: Levels) -> bool:
    """Unpacks the levels that `pack_tile` packed; returns True if a byte is the escape."""
    reach, columns = base // 2, packed.size
    # n // base as a product, which vectors have and division they have not: with the inverse
    # rounded up it is exact for every byte.
    inverse = np.uint32((1 << 16) // base + 1)
    remaining = np.empty(COLUMNS, np.uint32)
    far = np.uint8(0)
    for j in range(columns):
        remaining[j] = packed[j]
        far = max(far, packed[j])
    for digit in range(digits):
        row = levels[digit * columns : (digit + 1) * columns]
        for j in range(columns):
            above = np.uint32(remaining[j] * inverse) >> U16
            row[j] = np.int16(np.int32(remaining[j]) - np.int32(above) * base - reach)
            remaining[j] = above
    return bool(far == base**digits)


@jit
def restore_tile(
    packed: Bytes, base: int, digits: int, escapes: Levels, restored: int, levels: Levels
) -> int:
    """Puts the levels that escaped in their places. Returns how many are taken by now."""
    columns, escape = packed.size, base**digits
    for j in range(columns):
        if packed[j] == escape:
            for digit in range(digits):
                levels[digit * columns + j] = escapes[restored]
                restored += 1
    return restored
