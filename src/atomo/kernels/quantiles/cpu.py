"""Quantile buckets and the MinMaxSketch of their numbers. Contracts: `kernels/quantiles`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.clusters import TILE
from atomo.kernels.clusters.cpu import hash_tile, unpack
from atomo.kernels.jit import jit

__all__ = ["add_sketched", "extremes", "histogram", "lay_out_blocks", "sketch"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]
Halves = NDArray[np.uint16]
Words = NDArray[np.uint32]
GROUPS = 16
WITHIN = 32  # buckets in a group
BLOCK = 8192  # entries with their cells in one block
ROWS = 2
EMPTY = np.uint8(255)  # above all numbers, so that the least of a cell's is never this one
MOST_SHARE = 4  # cells to a row for each entry
MOST_CELLS = ROWS * (MOST_SHARE * BLOCK + GROUPS)  # of a block
U16 = np.uint32(16)
M16 = np.uint32(0xFFFF)
LANES = 512  # adjacent counters, which no block of 16 times as many entries overflows
MAGNITUDE = np.uint32(0x7FFFFFFF)


@jit
def extremes(bits: NDArray[np.uint32]) -> tuple[int, int]:
    """Returns the least and the greatest magnitude as bits, which have the order of the floats."""
    smallest, greatest = MAGNITUDE, np.uint32(0)
    for i in range(bits.size):
        magnitude = bits[i] & MAGNITUDE
        smallest, greatest = min(smallest, magnitude), max(greatest, magnitude)
    return int(smallest), int(greatest)


@jit
def histogram(
    bits: NDArray[np.uint32], block: int, stride: int, counts: Counts, sums: Doubles
) -> None:
    """Counts the first `block` of every `stride` entries by upper half, and sums them."""
    values = bits.view(np.float32)
    for start in range(0, bits.size, stride):
        for i in range(start, min(start + block, bits.size)):
            half = bits[i] >> U16
            counts[half] += 1
            sums[half] += np.float64(values[i])


@jit
def look_up(bits: Words, table: Halves, codes: Halves, ids: Bytes) -> None:
    """Looks up the code of each entry of a block, and its group."""
    for i in range(bits.size):
        codes[i] = table[bits[i] >> U16]
    for i in range(bits.size):
        ids[i] = np.uint8(codes[i] >> np.uint16(8))


@jit
def pack(ids: Bytes, start: int, size: int, packed: Bytes) -> None:
    """Packs the groups of a block, two to a byte; the last may be alone."""
    for tile in range(0, size, TILE):
        count = min(TILE, size - tile)
        half = (count + 1) // 2
        place = (start + tile) // 2
        target, low, high = packed[place : place + half], ids[tile:], ids[tile + half :]
        for j in range(count - half):
            target[j] = low[j] | high[j] << np.uint8(4)
        if count % 2:
            target[half - 1] = low[half - 1]


@jit
def unpack_block(packed: Bytes, start: int, size: int, ids: Bytes) -> None:
    """Unpacks the groups that `pack` packed."""
    for tile in range(0, size, TILE):
        unpack(packed, start + tile, min(TILE, size - tile), ids[tile:])


@jit
def tally(ids: Bytes, size: int, lanes: Bytes, counts: Counts) -> None:
    """Counts the entries of a block in each group, with vectors of comparisons."""
    whole = size // LANES * LANES
    # Once over the block for each group: a comparison of vectors takes less than counting into an
    # array, where equal neighbours wait for each other.
    for group in range(GROUPS):
        number = np.uint8(group)
        lanes[:] = 0
        for start in range(0, whole, LANES):
            row = ids[start : start + LANES]
            for j in range(LANES):
                lanes[j] += np.uint8(1) if row[j] == number else np.uint8(0)
        counts[group] = lanes.sum()
    for i in range(whole, size):
        counts[ids[i]] += 1


@jit
def lay_out(counts: Counts, share: float, spans: Words) -> int:
    """Computes the start of each group's cells, halved, and, in the lower half, the size of a row.

    Returns:
        The number of cells.
    """
    used = 0
    for group in range(GROUPS):
        width = int(np.ceil(counts[group] * share))
        # At most MOST_CELLS lie before it, half of which, as there are two rows, is below 2^16.
        spans[group] = np.uint32(used // ROWS << 16 | width)
        used += ROWS * width
    return used


@jit
def lay_out_blocks(packed: Bytes, entries: int, share: float, spans: Words, sizes: Counts) -> int:
    """Lays out every block, and returns the total number of cells."""
    ids, lanes = np.empty(BLOCK + 1, np.uint8), np.empty(LANES, np.uint8)
    counts = np.empty(GROUPS, np.int64)
    for start in range(0, entries, BLOCK):
        block, size = start // BLOCK, min(BLOCK, entries - start)
        unpack_block(packed, start, size, ids)
        tally(ids, size, lanes, counts)
        sizes[block] = lay_out(counts, share, spans[block])
    return int(sizes.sum())


@jit
def find_cells(spans: Words, start: int, keys: Words, row: int, cells: Words) -> None:
    """Finds the cell of each entry of a block in a row, from the spans of the groups."""
    hash_tile(start, keys[row], cells)
    second = np.uint32(row)
    for i in range(cells.size):
        width, word = spans[i] & M16, cells[i]
        # The upper half of a product of 32 and 16 bits, without 64.
        within = np.uint32((word >> U16) * width + ((word & M16) * width >> U16)) >> U16
        cells[i] = np.uint32((spans[i] >> U16) * np.uint32(ROWS) + second * width + within)


@jit
def spread(ids: Bytes, spans: Words, entry_spans: Words) -> None:
    """Copies the span of its group to each entry."""
    for i in range(entry_spans.size):
        entry_spans[i] = spans[ids[i]]


@jit
def fill(codes: Halves, first_cells: Words, second_cells: Words, block: Bytes) -> None:
    """Stores the least number of all entries that share a cell; 0 for an empty cell."""
    block[:] = EMPTY
    for i in range(first_cells.size):
        number = np.uint8(codes[i] & np.uint16(255))
        first, second = np.uint64(first_cells[i]), np.uint64(second_cells[i])
        block[first] = min(block[first], number)
        block[second] = min(block[second], number)
    for i in range(block.size):
        block[i] = np.uint8(0) if block[i] == EMPTY else block[i]


@jit
def add_block(
    spans: Words,
    block: Bytes,
    first_cells: Words,
    second_cells: Words,
    scaled: Floats,
    wide: Halves,
    out: Floats,
) -> None:
    """Adds the mean of the larger of the two numbers that the cells of each entry have."""
    for group in range(GROUPS):
        first, width = (spans[group] >> U16) * ROWS, spans[group] & M16
        # A stranger's cell may hold any byte: within its group's buckets it is kept by the mask.
        for i in range(first, first + ROWS * width):
            wide[i] = np.uint16(group * WITHIN) + np.uint16(block[i] & np.uint8(WITHIN - 1))
    for i in range(out.size):
        # The least number of those that share a cell is never above an entry's own, so that the
        # larger of two is the better one: MinMaxSketch.
        bucket = max(wide[np.uint64(first_cells[i])], wide[np.uint64(second_cells[i])])
        out[i] += scaled[np.uint64(bucket)]


@jit
def sketch(
    bits: Words,
    table: Halves,
    share: float,
    keys: Words,
    packed: Bytes,
    cells: Bytes,
    scaled: Floats,
    residual: Floats,
) -> int:
    """Fills the groups of the entries, two to a byte, and the cells with the least number in its
    group of the buckets that share each. Adds the decoded values to `residual`, unless that is
    empty.

    Returns:
        The number of cells.
    """
    codes, ids = np.empty(BLOCK, np.uint16), np.empty(BLOCK, np.uint8)
    lanes, counts = np.empty(LANES, np.uint8), np.empty(GROUPS, np.int64)
    spans, entry_spans = np.empty(GROUPS, np.uint32), np.empty(BLOCK, np.uint32)
    first_cells, second_cells = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    wide = np.empty(min(cells.size, MOST_CELLS), np.uint16)
    base = 0
    for start in range(0, bits.size, BLOCK):
        part = bits[start : start + BLOCK]
        size = part.size
        look_up(part, table, codes, ids)
        pack(ids, start, size, packed)
        tally(ids, size, lanes, counts)
        # The decoder computes the same layout of cells from the groups: nothing else is sent.
        used = lay_out(counts, share, spans)
        spread(ids, spans, entry_spans[:size])
        find_cells(entry_spans, start, keys, 0, first_cells[:size])
        find_cells(entry_spans, start, keys, 1, second_cells[:size])
        block = cells[base : base + used]
        fill(codes, first_cells[:size], second_cells[:size], block)
        if residual.size:
            add_block(
                spans,
                block,
                first_cells,
                second_cells,
                scaled,
                wide,
                residual[start : start + size],
            )
        base += used
    return base


@jit
def add_sketched(
    packed: Bytes,
    cells: Bytes,
    spans: Words,
    sizes: Counts,
    keys: Words,
    scaled: Floats,
    out: Floats,
) -> None:
    """Adds to each entry the mean of the larger bucket number of its rows."""
    ids, entry_spans = np.empty(BLOCK + 1, np.uint8), np.empty(BLOCK, np.uint32)
    first_cells, second_cells = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    wide = np.empty(min(cells.size, MOST_CELLS), np.uint16)
    base = 0
    for start in range(0, out.size, BLOCK):
        part, layout = out[start : start + BLOCK], spans[start // BLOCK]
        size, used = part.size, sizes[start // BLOCK]
        unpack_block(packed, start, size, ids)
        spread(ids, layout, entry_spans[:size])
        find_cells(entry_spans, start, keys, 0, first_cells[:size])
        find_cells(entry_spans, start, keys, 1, second_cells[:size])
        add_block(layout, cells[base : base + used], first_cells, second_cells, scaled, wide, part)
        base += used
