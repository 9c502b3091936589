"""Two levels by Lloyd's algorithm, in numba. Contracts: `kernels.lloyd`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.lloyd import MOST_ROUNDS

__all__ = ["two_levels"]

Floats = NDArray[np.float32]

LANES = 8


def two_levels(values: Tensor, run: int) -> Tensor:
    levels = torch.empty(-(-len(values) // run), 2)
    fit_runs(values.float().numpy(), run, MOST_ROUNDS, levels.numpy())
    return levels


@jit
def fit_runs(values: Floats, run: int, rounds: int, levels: Floats) -> None:
    """Fits the levels of each run."""
    for number in range(levels.shape[0]):
        part = values[number * run : (number + 1) * run]
        total, _ = above(part, np.float32(-1.0))
        low = high = total / part.size
        larger = -1
        for _ in range(rounds):
            upper, count = above(part, np.float32(low + (high - low) / 2))
            if count == larger or count == 0 or count == part.size:
                break
            high, low, larger = upper / count, (total - upper) / (part.size - count), count
        levels[number, 0], levels[number, 1] = low, high


@jit
def above(values: Floats, threshold: np.float32) -> tuple[float, int]:
    """Returns the sum and the number of the magnitudes above a threshold."""
    sums, counts = np.zeros(LANES), np.zeros(LANES, np.int64)
    whole = values.size // LANES * LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            magnitude = abs(values[i + j])
            larger = not magnitude <= threshold  # also where it is NaN
            sums[j] += np.float64(magnitude) if larger else 0.0
            counts[j] += int(larger)
    for i in range(whole, values.size):
        magnitude = abs(values[i])
        larger = not magnitude <= threshold
        sums[0] += np.float64(magnitude) if larger else 0.0
        counts[0] += int(larger)
    return sums.sum(), counts.sum()
