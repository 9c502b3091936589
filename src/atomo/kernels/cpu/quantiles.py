"""Quantile buckets and the MinMaxSketch of their numbers. Contracts: `kernels/quantiles`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit
from atomo.kernels.cpu.clusters import hash_tile

__all__ = ["add_sketched", "cell_count", "extremes", "groups_of", "histogram", "sketch"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]
GROUPS = 16
WITHIN = 32  # buckets in a group
BLOCK = 8192  # entries whose cells lie together
ROWS = 2
EMPTY = np.uint8(255)
U16 = np.uint32(16)
S32 = np.uint64(32)
MAGNITUDE = np.uint32(0x7FFFFFFF)


@jit
def extremes(bits: NDArray[np.uint32]) -> tuple[int, int]:
    """The least and the greatest magnitude, as bits: these are in the order of the floats."""
    least, greatest = MAGNITUDE, np.uint32(0)
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        least, greatest = min(least, magnitude), max(greatest, magnitude)
    return int(least), int(greatest)


@jit
def histogram(
    bits: NDArray[np.uint32], block: int, stride: int, counts: Counts, sums: Doubles
) -> None:
    """How many of the first `block` of every `stride` entries have each upper half; their sums."""
    values = bits.view(np.float32)
    for start in range(0, bits.size, stride):
        for i in range(start, min(start + block, bits.size)):
            half = bits[i] >> U16
            counts[half] += 1
            sums[half] += np.float64(values[i])


@jit
def groups_of(bits: NDArray[np.uint32], table: NDArray[np.uint16], packed: Bytes) -> None:
    """The group of each entry, two to a byte."""
    ids = np.empty(1024, np.uint8)
    for start in range(0, bits.size, 1024):
        part = bits[start : start + 1024]
        half = (part.size + 1) // 2
        ids[part.size : 2 * half] = 0
        for i in range(part.size):
            ids[i] = table[part[i] >> U16] >> np.uint16(8)
        target, high = packed[start // 2 : start // 2 + half], ids[half:]
        for j in range(half):
            target[j] = ids[j] | high[j] << np.uint8(4)


@jit
def unpack_block(packed: Bytes, start: int, size: int, ids: Bytes) -> None:
    """The groups of a block, whose tiles of 1024 lie in `packed` as `groups_of` leaves them."""
    for tile in range(0, size, 1024):
        count = min(1024, size - tile)
        half = (count + 1) // 2
        place = (start + tile) // 2
        part, low, high = packed[place : place + half], ids[tile:], ids[tile + half :]
        for j in range(half):
            low[j] = part[j] & np.uint8(15)
        for j in range(half):
            high[j] = part[j] >> np.uint8(4)


@jit
def lay_out(ids: Bytes, size: int, share: float, starts: Counts, widths: Counts) -> int:
    """Where the cells of each group of a block begin, and how many it has to a row."""
    counts = np.zeros(GROUPS, np.int64)
    for i in range(size):
        counts[ids[i]] += 1
    used = 0
    for group in range(GROUPS):
        starts[group] = used
        widths[group] = np.int64(np.ceil(counts[group] * share))
        used += ROWS * widths[group]
    return used


@jit
def cell_count(packed: Bytes, entries: int, share: float) -> int:
    """How many cells there are."""
    ids = np.empty(BLOCK + 1, np.uint8)
    starts, widths = np.empty(GROUPS, np.int64), np.empty(GROUPS, np.int64)
    total = 0
    for start in range(0, entries, BLOCK):
        size = min(BLOCK, entries - start)
        unpack_block(packed, start, size, ids)
        total += lay_out(ids, size, share, starts, widths)
    return total


@jit
def sketch(
    bits: NDArray[np.uint32],
    table: NDArray[np.uint16],
    packed: Bytes,
    share: float,
    keys: NDArray[np.uint32],
    cells: Bytes,
) -> int:
    """Fills the cells with the least number in its group of the buckets that share each.

    Returns:
        How many cells there are.
    """
    ids, words = np.empty(BLOCK + 1, np.uint8), np.empty(BLOCK, np.uint32)
    others = np.empty(BLOCK, np.uint32)
    starts, widths = np.empty(GROUPS, np.int64), np.empty(GROUPS, np.int64)
    base = 0
    for start in range(0, bits.size, BLOCK):
        part = bits[start : start + BLOCK]
        unpack_block(packed, start, part.size, ids)
        used = lay_out(ids, part.size, share, starts, widths)
        block = cells[base : base + used]
        block[:] = EMPTY
        hash_tile(start, keys[0], words)
        hash_tile(start, keys[1], others)
        for i in range(part.size):
            number = np.uint8(table[part[i] >> U16] & 255)
            width, first = np.uint64(widths[ids[i]]), np.uint64(starts[ids[i]])
            place = first + (np.uint64(words[i]) * width >> S32)
            block[place] = min(block[place], number)
            place = first + width + (np.uint64(others[i]) * width >> S32)
            block[place] = min(block[place], number)
        for i in range(used):
            block[i] = np.uint8(0) if block[i] == EMPTY else block[i]
        base += used
    return base


@jit
def add_sketched(
    packed: Bytes,
    cells: Bytes,
    share: float,
    keys: NDArray[np.uint32],
    means: Floats,
    scale: np.float32,
    out: Floats,
) -> None:
    """Adds scale times the mean of the largest number that the rows say for each entry."""
    ids, words = np.empty(BLOCK + 1, np.uint8), np.empty(BLOCK, np.uint32)
    others = np.empty(BLOCK, np.uint32)
    starts, widths = np.empty(GROUPS, np.int64), np.empty(GROUPS, np.int64)
    scaled = means * scale
    base = 0
    for start in range(0, out.size, BLOCK):
        part = out[start : start + BLOCK]
        unpack_block(packed, start, part.size, ids)
        used = lay_out(ids, part.size, share, starts, widths)
        block = cells[base : base + used]
        hash_tile(start, keys[0], words)
        hash_tile(start, keys[1], others)
        for i in range(part.size):
            width, first = np.uint64(widths[ids[i]]), np.uint64(starts[ids[i]])
            one = block[first + (np.uint64(words[i]) * width >> S32)]
            two = block[first + width + (np.uint64(others[i]) * width >> S32)]
            within = np.uint64(max(one, two) & np.uint8(WITHIN - 1))
            part[i] += scaled[np.uint64(ids[i]) * np.uint64(WITHIN) + within]
        base += used
