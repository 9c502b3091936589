"""Gradient of an embedding: a matrix of which a batch touches few rows; the others are zero.

The cost of each operation grows with the touched rows, and not with the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int64

__all__ = ["RowGradient"]


@final
@dataclass(frozen=True, eq=False)
class RowGradient:
    """Some rows of a matrix; all others are zero."""

    rows: Int64[torch.Tensor, " r"]
    """The indices of the present rows, in increasing order."""
    values: Float[torch.Tensor, "r w"]
    """Contiguous float32. Scratch space once it was encoded, as gradients are."""
    shape: torch.Size
    """The shape of the whole matrix."""

    def numel(self) -> int:
        """Returns the number of entries of the whole matrix."""
        return self.shape.numel()

    def places(self, indices: Int64[torch.Tensor, " k"]) -> Int64[torch.Tensor, " k"]:
        """Maps indices in the flattened `values` to indices in the flattened matrix, in the same
        order.
        """
        width = self.shape[1]
        further = self.rows - torch.arange(len(self.rows), device=self.rows.device)
        return indices + width * further[indices // width]

    def at(self, positions: Int64[torch.Tensor, " s"]) -> Float[torch.Tensor, " s"]:
        """Returns the entries at increasing positions of the flattened matrix."""
        width = self.shape[1]
        sample = self.values.new_zeros(len(positions))
        starts = torch.searchsorted(positions, self.rows * width)
        counts = torch.searchsorted(positions, (self.rows + 1) * width) - starts
        place = torch.arange(len(self.rows), device=counts.device).repeat_interleave(counts)
        sampled = torch.arange(len(place), device=counts.device)
        sampled += (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
        column = positions[sampled] - self.rows[place] * width
        sample[sampled] = self.values[place, column]
        return sample

    def add_to(self, out: Float[torch.Tensor, "h w"], scale: float = 1.0) -> None:
        """Adds `scale` times the rows to a whole matrix, in place."""
        out.index_add_(0, self.rows, self.values, alpha=scale)

    def write_to(self, out: Float[torch.Tensor, "h w"]) -> None:
        """Makes a whole matrix equal to this one."""
        out.zero_().index_copy_(0, self.rows, self.values)
