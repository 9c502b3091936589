"""Two levels by Lloyd's algorithm, in numba. Contracts: `kernels.lloyd`.

A run is summed again in each round, while it is in the cache: in float32 by blocks, so that eight
entries are added at once. The means that are returned are sums in float64.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit, jit_sum
from atomo.kernels.lloyd import MOST_ROUNDS
from atomo.kernels.sign import TILE, word_count
from atomo.kernels.sign.cpu import pack_tile

__all__ = ["add_levels", "pack_levels", "two_levels"]

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]

BLOCK = 4096
TWO = np.float32(2)


def two_levels(values: Tensor, run: int) -> Tensor:
    levels = torch.empty(-(-len(values) // run), 2)
    fit_runs(values.float().numpy(), run, MOST_ROUNDS, levels.numpy())
    return levels


def pack_levels(values: Tensor, run: int, levels: Tensor) -> tuple[Tensor, Tensor]:
    signs, outer = (torch.empty(word_count(len(values)), dtype=torch.int32) for _ in range(2))
    words = signs.numpy().view(np.uint32), outer.numpy().view(np.uint32)
    pack_runs(values.float().numpy(), run, levels.numpy(), *words)
    return signs, outer


def add_levels(signs: Tensor, outer: Tensor, levels: Tensor, run: int, out: Tensor) -> None:
    words = signs.numpy().view(np.uint32), outer.numpy().view(np.uint32)
    add_runs(*words, levels.numpy(), run, out.numpy())


@jit
def fit_runs(values: Floats, run: int, rounds: int, levels: Floats) -> None:
    """Fits the levels of each run."""
    scratch = np.empty(min(run, values.size), np.float32)
    for number in range(levels.shape[0]):
        part = values[number * run : (number + 1) * run]
        levels[number, 0], levels[number, 1] = fit(part, rounds, scratch)


@jit
def fit(values: Floats, rounds: int, scratch: Floats) -> tuple[float, float]:
    """Returns the levels of a run."""
    total, _ = exactly_above(values, np.float32(-1.0))
    low = high = total / values.size
    larger, threshold = -1, np.float32(-1.0)
    kept = values
    for _ in range(rounds):
        middle = np.float32(low + (high - low) / 2)
        # The threshold moves one way from the second round on, since both means grow with it. If
        # it rises, entries below the last one are not looked at again.
        if middle >= threshold > 0 and 2 * larger <= kept.size:
            kept = scratch[: keep_above(kept, threshold, scratch)]
        elif middle < threshold:
            kept = values
        upper, count = above(kept, middle)
        if count in (larger, 0, values.size):
            break
        high, low = upper / count, (total - upper) / (values.size - count)
        larger, threshold = count, middle
    if larger > 0:
        upper, larger = exactly_above(kept, threshold)
        high, low = upper / larger, (total - upper) / (values.size - larger)
    return low, high


@jit
def keep_above(values: Floats, threshold: np.float32, kept: Floats) -> int:
    """Copies the magnitudes above a threshold; returns how many there are."""
    count = 0
    for i in range(values.size):
        magnitude = abs(values[i])
        kept[count] = magnitude  # overwritten unless it counts
        count += int(not magnitude <= threshold)
    return count


@jit
def above(values: Floats, threshold: np.float32) -> tuple[float, int]:
    """Returns the sum and the number of the magnitudes above a threshold."""
    total, count = 0.0, 0
    for start in range(0, values.size, BLOCK):
        part, larger = block_above(values[start : start + BLOCK], threshold)
        total += part
        count += int(larger)
    return total, count


@jit_sum
def block_above(values: Floats, threshold: np.float32) -> tuple[np.float32, np.float32]:
    """Returns the sum in float32 and the number of the magnitudes above a threshold."""
    total, count = np.float32(0), np.float32(0)  # of one type, for vectors of eight
    for i in range(values.size):
        magnitude = abs(values[i])
        larger = not magnitude <= threshold  # also where it is NaN
        total += magnitude if larger else np.float32(0)
        count += np.float32(1) if larger else np.float32(0)
    return total, count


@jit_sum
def exactly_above(values: Floats, threshold: np.float32) -> tuple[float, int]:
    """Returns the sum in float64 and the number of the magnitudes above a threshold."""
    total, count = 0.0, 0
    for i in range(values.size):
        magnitude = abs(values[i])
        larger = not magnitude <= threshold
        total += np.float64(magnitude) if larger else 0.0
        count += int(larger)
    return total, count


@jit
def pack_runs(values: Floats, run: int, levels: Floats, signs: Words, outer: Words) -> None:
    """Packs the signs and the levels of each tile."""
    below = np.empty(TILE, np.float32)
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        begin = 0
        while begin < part.size:  # one run at a time, as most tiles have few
            number = (start + begin) // run
            end = min(part.size, (number + 1) * run - start)
            low, high = levels[number, 0], levels[number, 1]
            threshold = np.float32(low + (high - low) / TWO)
            for i in range(begin, end):
                below[i] = threshold - abs(part[i])
            begin = end
        words = slice(start // 32, start // 32 + (part.size + 31) // 32)
        pack_tile(part.view(np.int32), signs[words])
        pack_tile(below[: part.size].view(np.int32), outer[words])


@jit
def add_runs(signs: Words, outer: Words, levels: Floats, run: int, out: Floats) -> None:
    """Adds the levels of each row of a tile, one run at a time."""
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        width = (part.size + 31) // 32
        tile_signs, tile_outer = signs[start // 32 :], outer[start // 32 :]
        for row in range(32):
            begin, last = row * width, min(part.size, (row + 1) * width)
            while begin < last:
                number = (start + begin) // run
                end = min(last, (number + 1) * run - start)
                column = begin - row * width
                add_row(
                    tile_signs[column:], tile_outer[column:], np.uint32(row),
                    levels[number, 0], levels[number, 1], part[begin:end],
                )  # fmt: skip
                begin = end


@jit
def add_row(
    signs: Words, outer: Words, row: np.uint32, low: np.float32, high: np.float32, out: Floats
) -> None:
    """Adds the levels of entries of one row and one run."""
    mask = np.uint32(1) << row
    for j in range(out.size):
        level = high if (outer[j] & mask) != 0 else low
        out[j] += -level if (signs[j] & mask) != 0 else level
