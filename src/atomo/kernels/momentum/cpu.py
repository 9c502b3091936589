"""Momentum and selection in one pass, in numba. Contracts: `kernels/momentum`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.selection import Bounds
from atomo.kernels.selection.cpu import (
    TILE,
    above,
    adapted_entries,
    checked,
    find_above,
    find_kth,
    lower_and_cut,
    room_for,
    strided,
)

__all__ = ["grow_above", "grow_by_sample", "magnitudes"]

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def grow_above(
    values: Tensor, velocity: Tensor, gradient: Tensor, factor: float, nesterov: bool, low: int
) -> tuple[Tensor, Tensor]:
    room = len(values) // 8 + TILE  # the usual number
    indices, chosen = np.empty(room, np.int64), np.empty(room, np.float32)
    vectors = values.numpy(), velocity.numpy(), gradient.float().numpy()
    count, stored = grow_and_find(
        *vectors, np.float32(factor), nesterov, np.int32(low), indices, chosen
    )
    if count > stored:  # all entries have grown, and are searched again
        return above(values, None, low)
    return checked(indices[:count], chosen[:count])


def grow_by_sample(
    values: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    factor: float,
    nesterov: bool,
    sample: range,
    rank: int,
    bounds: Bounds,
) -> tuple[Tensor, Tensor]:
    indices, chosen = room_for(len(values))
    vectors = values.numpy(), velocity.numpy(), gradient.float().numpy()
    places = sample.start, sample.step, len(sample), rank
    found = grow_and_adapt(
        *vectors, np.float32(factor), nesterov, places, tuple(bounds), indices, chosen
    )
    return adapted_entries(values, found, bounds, indices, chosen)


def magnitudes(
    values: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    factor: float,
    nesterov: bool,
    positions: Tensor,
) -> Tensor:
    entries, speed, pushed = torch.empty(3, len(positions)).numpy()
    places = positions.numpy()
    for vector, part in ((values, entries), (velocity, speed), (gradient, pushed)):
        pick(vector.float().numpy(), places, part)
    grow(entries, speed, pushed, np.float32(factor), nesterov)
    return torch.from_numpy(entries).abs_().view(torch.int32)


@jit
def pick(vector: Floats, positions: Indices, picked: Floats) -> None:
    """Copies the entries at positions below the size."""
    for i in range(positions.size):
        picked[i] = vector[np.uint64(positions[i])]


@jit
def grow(
    values: Floats, velocity: Floats, gradient: Floats, factor: np.float32, nesterov: bool
) -> None:
    """Updates both vectors. Called a tile at a time: the next loop finds it in the cache."""
    # A loop for each vector that changes, as compilers make them fastest.
    if nesterov:
        for i in range(velocity.size):
            velocity[i] = (velocity[i] + gradient[i]) * factor
        for i in range(values.size):
            values[i] += velocity[i] + gradient[i]
    else:
        for i in range(velocity.size):
            velocity[i] = velocity[i] * factor + gradient[i]
        for i in range(values.size):
            values[i] += velocity[i]


@jit
def grow_and_find(
    values: Floats,
    velocity: Floats,
    gradient: Floats,
    factor: np.float32,
    nesterov: bool,
    low: np.int32,
    indices: Indices,
    chosen: Floats,
) -> tuple[int, int]:
    """Applies the momentum, and returns the number of entries above, and the number of those that
    fitted.
    """
    count = stored = 0
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        grow(
            part,
            velocity[start : start + TILE],
            gradient[start : start + TILE],
            factor,
            nesterov,
        )
        above, fitted = find_above(part, part, False, low, False, indices[stored:], chosen[stored:])
        for i in range(stored, stored + fitted):
            indices[i] += start
        count, stored = count + above, stored + fitted
    return count, stored


@jit
def grow_and_adapt(
    values: Floats,
    velocity: Floats,
    gradient: Floats,
    factor: np.float32,
    nesterov: bool,
    sample: tuple[int, int, int, int],
    bounds: tuple[int, float, float, int],
    indices: Indices,
    chosen: Floats,
) -> tuple[int, int, int]:
    """Selects as `grow_by_sample`, in one call: for a small layer calls take longer than loops.

    `sample` has its start, stride and size, and the rank of the threshold; `bounds` is a tuple,
    which is faster to pass than `Bounds`.

    Returns: as `lower_and_cut`.
    """
    start, stride, samples, rank = sample
    entries, speed = np.empty(samples, np.float32), np.empty(samples, np.float32)
    pushed = np.empty(samples, np.float32)
    # A loop for each vector: each keeps as many reads from memory in flight as there can be.
    strided(values, start, stride, entries)
    strided(velocity, start, stride, speed)
    strided(gradient, start, stride, pushed)
    grow(entries, speed, pushed, factor, nesterov)
    low = max(1, find_kth(entries.view(np.int32), rank)[0])
    count, stored = grow_and_find(
        values, velocity, gradient, factor, nesterov, np.int32(low), indices, chosen
    )
    return lower_and_cut(values, (count, stored), low, bounds, indices, chosen)
