"""Count-sketches: each entry, with a random sign, in a random cell. The contract of all backends.

Entry i has the random word w = mix(seed + i) of `random_words`: it lies in cell
(w >> 32) * cells >> 32, with the sign + where w is odd. The same on every device, as the receiver
need not have the sender's.
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = ["add_cells", "backend", "fill_cells"]

backend = backend_for(__name__, "cpu", "reference", "cuda")


def fill_cells(
    values: Float[torch.Tensor, " n"], seed: int, cells: Float[torch.Tensor, " cells"]
) -> None:
    """Adds each value, with its sign, to its cell, in place.

    Args:
        values: contiguous.
        seed: 0 to 2^63 - 1.
        cells: contiguous, fewer than 2^32, at least one.
    """
    backend(values).fill_cells(values, seed, cells)


def add_cells(
    cells: Float[torch.Tensor, " cells"], seed: int, out: Float[torch.Tensor, " n"], scale: float
) -> None:
    """Adds scale * sign * cell to each entry of `out`, in place. Arguments as in `fill_cells`."""
    backend(out).add_cells(to_device(cells, out.device), seed, out, scale)
