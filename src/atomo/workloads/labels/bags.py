"""Rows of numbers, each row of any length, kept end to end."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

__all__ = ["Bags", "gather_rows"]


@final
@dataclass(frozen=True, eq=False)
class Bags:
    """Samples as their features and their labels; all four tensors are whole rows, end to end."""

    features: Int64[Tensor, " f"]
    values: Float32[Tensor, " f"]
    feature_starts: Int64[Tensor, " n_plus_1"]
    labels: Int64[Tensor, " l"]
    label_starts: Int64[Tensor, " n_plus_1"]

    def __len__(self) -> int:
        return len(self.feature_starts) - 1

    def chosen(self, rows: Int64[Tensor, " b"]) -> "Bags":
        """Returns some rows, in any order."""
        features, feature_starts = gather_rows(self.feature_starts, rows)
        labels, label_starts = gather_rows(self.label_starts, rows)
        return Bags(
            self.features[features],
            self.values[features],
            feature_starts,
            self.labels[labels],
            label_starts,
        )


def gather_rows(
    starts: Int64[Tensor, " n_plus_1"], rows: Int64[Tensor, " b"]
) -> tuple[Int64[Tensor, " e"], Int64[Tensor, " b_plus_1"]]:
    """Finds the entries of some rows, and the beginning of each row among them."""
    lengths = starts[rows + 1] - starts[rows]
    begins = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    shift = (starts[rows] - begins[:-1]).repeat_interleave(lengths)
    return torch.arange(int(begins[-1])) + shift, begins
