"""The largest entries of each tile, in numba. Contracts: `kernels.tiles`."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.selection.cpu import MAGNITUDE, add_up, checked, find_kth
from atomo.kernels.tiles import Tiling

__all__ = ["largest"]

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Indices = NDArray[np.int64]

LANES = 16
OCTAVE = 1 << 23  # bits between a magnitude and its half


def largest(
    values: Tensor,
    added: Tensor | None,
    tiling: Tiling,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    rows, columns, height, width = tiling
    array = values.float().numpy()
    addend, add = (array, False) if added is None else (added.float().numpy(), True)
    room = int(counts.sum()) + width  # the last run of entries is written before it is counted
    indices, chosen = np.empty(room, np.int64), np.empty(room, np.float32)
    sides = min(rows, height), min(columns, width)
    count = select_tiles(array, addend, add, columns, *sides, counts.numpy(), indices, chosen)
    return checked(indices[:count], chosen[:count])


@jit
def select_tiles(
    values: Floats,
    added: Floats,
    add: bool,
    columns: int,
    height: int,
    width: int,
    counts: Indices,
    indices: Indices,
    chosen: Floats,
) -> int:
    """Adds `added` on request, stores the largest entries, and returns their number."""
    candidates = np.empty(height * width + LANES, np.int32)
    lows, ties = np.zeros(counts.shape[1], np.int64), np.empty(counts.shape[1], np.int64)
    band, count = height * columns, 0
    for number in range(counts.shape[0]):
        part = values[number * band : (number + 1) * band]
        if add:
            add_up(part, added[number * band : (number + 1) * band])
        bits = part.view(np.int32)
        for tile in range(counts.shape[1]):
            start, k = tile * width, counts[number, tile]
            side = min(width, columns - start)
            # Half of the last tile's smallest selected magnitude: few candidates, usually enough.
            near = lows[max(tile - 1, 0)] - OCTAVE
            size = gather_tile(bits, columns, start, side, max(near, 0), candidates)
            if size < k:
                size = gather_tile(bits, columns, start, side, 0, candidates)
            lows[tile], higher = find_kth(candidates[:size], k)
            ties[tile] = k - higher if lows[tile] > 0 else 0  # zeros are never selected
        count = emit(bits, number * band, columns, width, lows, ties, indices, count)
    for i in range(count):
        chosen[i] = values[indices[i]]
    return count


@jit
def gather_tile(bits: Bits, columns: int, start: int, side: int, low: int, candidates: Bits) -> int:
    """Stores the magnitudes of a tile with bits >= `low`, and returns their number."""
    count, bound = 0, np.int32(low)
    for row in range(start, bits.size, columns):
        for block in range(row, row + side, LANES):
            lanes = bits[block : min(block + LANES, row + side)]
            peak = np.int32(0)
            for j in range(lanes.size):
                peak = max(peak, np.int32(lanes[j] & MAGNITUDE))
            if peak < bound:
                continue
            # Always written, and counted if it is large enough: no branch.
            for j in range(lanes.size):
                magnitude = np.int32(lanes[j] & MAGNITUDE)
                candidates[count] = magnitude
                count += int(magnitude >= bound)
    return count


@jit
def emit(
    bits: Bits,
    offset: int,
    columns: int,
    width: int,
    lows: Indices,
    ties: Indices,
    indices: Indices,
    count: int,
) -> int:
    """Stores the indices of a band's selected entries by rows, and returns the new count."""
    for row in range(0, bits.size, columns):
        for tile in range(lows.size):
            low = np.int32(lows[tile])
            end = row + min((tile + 1) * width, columns)
            for block in range(row + tile * width, end, LANES):
                lanes = bits[block : min(block + LANES, end)]
                peak = np.int32(0)
                for j in range(lanes.size):
                    peak = max(peak, np.int32(lanes[j] & MAGNITUDE))
                if peak < low or (peak == low and ties[tile] == 0):
                    continue
                for j in range(lanes.size):
                    magnitude = np.int32(lanes[j] & MAGNITUDE)
                    tied = magnitude == low and ties[tile] > 0
                    ties[tile] -= int(tied)
                    indices[count] = offset + block + j
                    count += int(magnitude > low or tied)
    return count
