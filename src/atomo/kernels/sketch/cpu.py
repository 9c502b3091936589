"""Count-sketches in numba. Contracts: `kernels/sketch`."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.random_words.cpu import mix

__all__ = ["add_cells", "fill_cells"]

Floats = NDArray[np.float32]
HALF, LOW = np.uint64(32), np.uint64(1)


def fill_cells(values: Tensor, seed: int, cells: Tensor) -> None:
    fill(values.float().numpy(), np.uint64(seed), cells.numpy())


def add_cells(cells: Tensor, seed: int, out: Tensor, scale: float) -> None:
    add(cells.numpy(), np.uint64(seed), out.numpy(), np.float32(scale))


@jit
def fill(values: Floats, seed: int, cells: Floats) -> None:
    size, key = np.uint64(cells.size), np.uint64(seed)
    for i in range(values.size):
        word = mix(key + np.uint64(i))
        value = values[i] if word & LOW else -values[i]
        cells[((word >> HALF) * size) >> HALF] += value


@jit
def add(cells: Floats, seed: int, out: Floats, scale: np.float32) -> None:
    size, key = np.uint64(cells.size), np.uint64(seed)
    for i in range(out.size):
        word = mix(key + np.uint64(i))
        value = cells[((word >> HALF) * size) >> HALF] * scale
        out[i] += value if word & LOW else -value
