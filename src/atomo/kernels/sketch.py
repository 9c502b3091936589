"""Count-sketches, for the device of the tensor. What both backends promise.

Entry i has the random word w = splitmix64(seed + i): it lies in cell (w >> 32) * cells >> 32, with
the sign + where w is odd. The same on every device, as the receiver need not have the sender's.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from atomo.kernels.cpu import sketch as cpu
from atomo.kernels.device import sketch as device

__all__ = ["add_cells", "fill_cells"]


def fill_cells(values: Float[Tensor, " n"], seed: int, cells: Float[Tensor, " cells"]) -> None:
    """Adds each value, with its sign, to its cell, in place.

    Args:
        values: contiguous.
        seed: 0 to 2^63 - 1.
        cells: contiguous, fewer than 2^32, at least one.
    """
    if values.device.type == "cpu":
        cpu.fill_cells(values.numpy(), np.uint64(seed), cells.numpy())
    else:
        device.fill_cells(values, seed, cells)


def add_cells(
    cells: Float[Tensor, " cells"], seed: int, out: Float[Tensor, " n"], scale: float
) -> None:
    """Adds scale * sign * cell to each entry of `out`, in place. Arguments as in `fill_cells`."""
    if out.device.type == "cpu":
        cpu.add_cells(cells.numpy(), np.uint64(seed), out.numpy(), np.float32(scale))
    else:
        device.add_cells(cells, seed, out, scale)
