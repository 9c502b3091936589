"""Count-sketches: each entry, with a random sign, in a random cell. Contracts: `kernels/sketch`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit
from atomo.kernels.cpu.random import mix

__all__ = ["add_cells", "fill_cells"]

Floats = NDArray[np.float32]
HALF, LOW = np.uint64(32), np.uint64(1)


@jit
def fill_cells(values: Floats, seed: int, cells: Floats) -> None:
    """Adds each value, with its sign, to its cell."""
    size, key = np.uint64(cells.size), np.uint64(seed)
    for i in range(values.size):
        word = mix(key + np.uint64(i))
        value = values[i] if word & LOW else -values[i]
        cells[((word >> HALF) * size) >> HALF] += value


@jit
def add_cells(cells: Floats, seed: int, out: Floats, scale: np.float32) -> None:
    """Adds what each cell says of its entries."""
    size, key = np.uint64(cells.size), np.uint64(seed)
    for i in range(out.size):
        word = mix(key + np.uint64(i))
        value = cells[((word >> HALF) * size) >> HALF] * scale
        out[i] += value if word & LOW else -value
