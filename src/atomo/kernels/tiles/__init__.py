"""Selection of the largest entries within each tile of a matrix. The contract of all backends.

Magnitudes are compared as in `kernels.selection`. Tiles at the right and lower edge are smaller.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int64

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = ["Tiling", "backend", "largest", "tile_sizes"]

backend = backend_for(__name__, "cpu", "reference")


@final
class Tiling(NamedTuple):
    """A matrix, flattened by rows, and the sides of its tiles."""

    rows: int
    columns: int
    height: int
    width: int


def tile_sizes(tiling: Tiling) -> Int64[torch.Tensor, "down across"]:
    """Returns the number of entries of each tile."""
    heights = sides(tiling.rows, tiling.height)
    return heights[:, None] * sides(tiling.columns, tiling.width)


def sides(length: int, side: int) -> Int64[torch.Tensor, " tiles"]:
    """Returns the sides of the tiles along one dimension."""
    starts = torch.arange(0, length, side)
    return (length - starts).clamp_max(side)


def largest(
    values: Float[torch.Tensor, " n"],
    added: Float[torch.Tensor, " n"] | None,
    tiling: Tiling,
    counts: Int64[torch.Tensor, "down across"],
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Returns the increasing indices and the values of the largest entries of each tile: as many as
    its count, or all non-zero entries if these are fewer.

    Of equal entries of a tile the first by rows count. `values` becomes the sum with `added`.

    Args:
        values: rows x columns entries, contiguous.
        added: contiguous; added to `values` first, in place.
        tiling: the matrix and its tiles.
        counts: at least 1 and at most the entries of each tile.

    Raises:
        ValueError: NaN or infinity was found.
    """
    return backend(values).largest(values, added, tiling, to_device(counts, values.device))
