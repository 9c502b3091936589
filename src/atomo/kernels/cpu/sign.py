"""One bit an entry, and the residual in the same passes. Contracts: `kernels/sign`.

The entries go by tiles of 32 rows of 64: bit i of word j is the sign of entry j of row i, so that
no entry ever moves between vector lanes.
"""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = ["add_pack_sum", "add_signs", "pack_signs"]

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
WIDTH = 64
TILE = 32 * WIDTH
LANES = 32
U31 = np.uint32(31)
MAGNITUDE = np.int32(0x7FFFFFFF)


@jit
def pack_tile(part: Bits, held: Words) -> tuple[np.int32, np.int32]:
    """The sign bits of a tile; returns its largest magnitude's bits, and how many bits are set."""
    width = held.size
    most = np.int32(0)
    negative = np.int32(0)
    held[:] = 0
    for row in range(32):
        entries = part[row * width : (row + 1) * width]
        place = np.uint32(row)
        for j in range(entries.size):
            sign = np.uint32(np.uint32(entries[j]) >> U31)
            held[j] |= np.uint32(sign << place)
            negative += np.int32(sign)
            most = max(most, np.int32(entries[j] & MAGNITUDE))
    return most, negative


@jit
def pack_signs(bits: Bits, words: Words) -> np.int32:
    """The sign bits of float32 numbers given as int32; returns the largest magnitude's bits."""
    most = np.int32(0)
    for start in range(0, bits.size, TILE):
        part = bits[start : start + TILE]
        held = words[start // 32 : start // 32 + (part.size + 31) // 32]
        most = max(most, pack_tile(part, held)[0])
    return most


@jit
def add_pack_sum(
    values: Floats, added: Floats, add: bool, words: Words
) -> tuple[float, float, int]:
    """Adds `added` to `values` if asked to, packs the signs, and sums the entries of either sign.

    Returns:
        The sums of those without and with a sign bit, and how many are without.
    """
    whole_sum, size_sum = np.zeros(LANES), np.zeros(LANES)
    negative = 0
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        if add:
            other = added[start : start + TILE]
            for i in range(part.size):
                part[i] += other[i]
        held = words[start // 32 : start // 32 + (part.size + 31) // 32]
        negative += pack_tile(part.view(np.int32), held)[1]
        whole = part.size // LANES * LANES
        for i in range(0, whole, LANES):
            for j in range(LANES):
                value = np.float64(part[i + j])
                whole_sum[j] += value
                size_sum[j] += abs(value)
        for i in range(whole, part.size):
            whole_sum[0] += np.float64(part[i])
            size_sum[0] += abs(np.float64(part[i]))
    total, size = whole_sum.sum(), size_sum.sum()
    return (total + size) / 2, (total - size) / 2, values.size - negative


@jit
def add_signs(words: Words, positive: float, negative: float, out: Floats) -> None:
    """Adds `positive` where the bit is 0 and `negative` where it is 1."""
    plus, minus = np.float32(positive), np.float32(negative)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        width = (part.size + 31) // 32
        held = words[start // 32 : start // 32 + width]
        for row in range(32):
            target = part[row * width : (row + 1) * width]
            mask = np.uint32(1 << row)
            for j in range(target.size):
                target[j] += minus if (held[j] & mask) != 0 else plus
