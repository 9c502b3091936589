"""Sampling the entries of a vector, in numba. Contracts: `kernels/atoms`.

The random numbers of a tile are made and compared in vector lanes with 24 bits; the few entries
that pass are drawn again with 53 more bits, so that the smallest probability is exact too.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.atoms import TILE
from atomo.kernels.jit import jit
from atomo.kernels.random_words.cpu import mix, random_words

__all__ = ["add_cosines", "best_rate", "sample_entries"]

Floats = NDArray[np.float32]
LANES = 512  # sums side by side: the compiler may not reorder one
PASSES = 100  # Newton's method needs about five
U8 = np.uint32(8)
FULL = 2.0**24
SLACK = 1.000001  # more than the rounding error of a float32 product


def best_rate(values: Tensor, budget: float) -> float:
    return float(newton(values.numpy(), budget))


def sample_entries(values: Tensor, rate: float, seed: int) -> Tensor:
    return torch.from_numpy(sample(values.numpy(), rate, np.uint64(seed)))


def add_cosines(out: Tensor, indices: Tensor, values: Tensor, waves: Tensor) -> None:
    add_waves(out.numpy(), indices.numpy(), values.numpy(), waves.numpy())


@jit
def below(values: Floats, rate: float) -> tuple[float, int]:
    """Returns the sum of the magnitudes with |v| rate < 1, and the number of all others."""
    sums, counts = np.zeros(LANES), np.zeros(LANES, np.int32)
    for start in range(0, values.size, LANES):
        part = values[start : start + LANES]
        for i in range(part.size):
            size = abs(np.float64(part[i]))
            certain = size * rate >= 1.0
            sums[i] += 0.0 if certain else size
            counts[i] += np.int32(certain)
    return sums.sum(), counts.sum()


@jit
def newton(values: Floats, budget: float) -> Any:
    """Solves sum_i min(1, |v_i| t) = budget for t: Algorithm 1 of ATOMO, s = budget."""
    # sum_i min(1, |v_i| t) is concave in t, so that Newton's method approaches the budget from
    # below and every rate on the way is a valid one.
    total, certain = below(values, 0.0)
    if not np.isfinite(total):
        return np.nan
    if total == 0.0:
        return np.inf
    rate = budget / total
    for _ in range(PASSES):
        total, reached = below(values, rate)
        if reached == certain:  # on one piece of the sum, which is linear there: t is exact
            break
        # Checked once, after the first pass: such a large budget is rare.
        if certain == 0 and budget >= np.count_nonzero(values):
            return np.inf
        certain = reached
        # Each certain atom takes 1 of the budget, and the other atoms share the rest by magnitude.
        # The rate never falls: a rate that fell by rounding could make the loop endless.
        rate = max(rate, (budget - certain) / total) if total else np.inf
    return rate


@jit
def passes(
    values: Floats, rate: np.float32, words: NDArray[np.uint32], hits: NDArray[np.uint8]
) -> None:
    """Marks the entries that pass with 24 random bits: all that more bits may draw."""
    # The rate is SLACK too high: rounding in float32 refuses no entry that might be drawn.
    for i in range(values.size):
        through = np.float32(np.int32(words[i] >> U8)) < abs(values[i]) * rate
        hits[i] = np.uint8(1) if through else np.uint8(0)
    hits[values.size :] = 0


@jit
def sample(values: Floats, rate: float, seed: int) -> NDArray[np.int64]:
    chosen, count = np.empty(values.size // 64 + TILE, np.int64), 0
    words, hits = np.empty(TILE, np.uint32), np.empty(TILE, np.uint8)
    eights = hits.view(np.uint64)  # nearly all are 0: eight entries are passed over at a time
    coarse = np.float32(rate * FULL * SLACK)
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        key = mix(np.uint64(seed) ^ mix(np.uint64(start)))
        random_words(key, words)
        passes(part, coarse, words, hits)
        if count + TILE > chosen.size:
            grown = np.empty(2 * chosen.size, np.int64)
            for i in range(count):  # a slice takes numba three seconds more to compile
                grown[i] = chosen[i]
            chosen = grown
        for j in range(TILE // 8):
            if eights[j] == 0:
                continue
            for i in range(8 * j, 8 * j + 8):
                if hits[i]:
                    low_bits = np.float64(mix(key + np.uint64(i)) >> np.uint64(11)) * 2.0**-53
                    uniform = (np.float64(words[i] >> U8) + low_bits) / FULL
                    # Always written, and counted if it is drawn: no branch.
                    chosen[count] = start + i
                    count += 1 if uniform < abs(np.float64(part[i])) * rate else 0
    return chosen[:count].copy()


@jit
def add_waves(
    out: Floats, indices: NDArray[np.int64], values: Floats, waves: NDArray[np.float32]
) -> None:
    block = waves.shape[0]
    for i in range(indices.size):
        start = indices[i] // block * block
        wave = waves[indices[i] % block]
        value = values[i]
        stop = min(block, out.size - start)
        for j in range(stop):
            out[start + j] += value * wave[j]
