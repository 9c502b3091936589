"""A network with one hidden layer and an input as sparse as a bag of words.

With millions of labels its layers have more entries than a message takes. Its hidden units are
independent, so such a network is several narrow networks with a sum of scores.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import EmbeddingBag, Linear, Module, ModuleList, Parameter
from torch.nn.functional import relu

from atomo.workloads.labels.row_sums import sums_of_rows

__all__ = ["SparseMLP", "WideMLP", "sparse_mlp"]

MOST: Final = 2**31 - 1  # entries of a layer


def sparse_mlp(features: int, hidden: int, square: float, rates: Float[Tensor, " l"]) -> Module:
    """Returns the network, in as many parts as its layers need; arguments are those of
    `SparseMLP`.
    """
    widest = max(1, MOST // max(features, len(rates)))
    parts = -(-hidden // widest)
    if parts == 1:
        return SparseMLP(features, hidden, square, rates)
    widths = [hidden * (part + 1) // parts - hidden * part // parts for part in range(parts)]
    return WideMLP([SparseMLP(features, width, square, rates) for width in widths])


@final
class SparseMLP(Module):
    """A network that computes the scores of labels from the features of a sample.

    Its first layer reads only the rows of these features, forward and backward: the cost of a step
    grows with the features of the samples, not with the number of all features.
    """

    def __init__(
        self, features: int, hidden: int, square: float, rates: Float[Tensor, " l"]
    ) -> None:
        """Draws the first weights.

        Args:
            features: the number of features.
            hidden: units between.
            square: mean squared length of a sample; hidden units begin with a variance of one.
            rates: share of the samples that has each label, with which their scores begin.
        """
        super().__init__()
        self.first = EmbeddingBag(
            features, hidden, mode="sum", sparse=True, include_last_offset=True
        )  # declares a sparse gradient; `sums_of_rows` computes it
        torch.nn.init.normal_(self.first.weight, std=1 / math.sqrt(max(square, 1e-12)))
        self.bias = Parameter(torch.zeros(hidden))
        self.last = Linear(hidden, len(rates))
        with torch.no_grad():
            self.last.bias.copy_(rates.clamp(1e-6, 1 - 1e-6).logit())

    def forward(
        self,
        features: Int64[Tensor, " f"],
        starts: Int64[Tensor, " b_plus_1"],
        values: Float[Tensor, " f"],
    ) -> Float[Tensor, "b l"]:
        hidden = sums_of_rows(self.first.weight, features, starts, values) + self.bias
        scores: Tensor = self.last(relu(hidden))
        return scores


@final
class WideMLP(Module):
    """Several networks as one with the hidden units of all."""

    def __init__(self, parts: Sequence[SparseMLP]) -> None:
        """Makes the first weights those of one network: scores begin with the same variance."""
        super().__init__()
        self.parts = ModuleList(parts)
        hidden = sum(part.last.in_features for part in parts)
        with torch.no_grad():
            for number, part in enumerate(parts):
                part.last.weight.mul_(math.sqrt(part.last.in_features / hidden))
                if number:
                    part.last.register_parameter("bias", None)

    def forward(
        self,
        features: Int64[Tensor, " f"],
        starts: Int64[Tensor, " b_plus_1"],
        values: Float[Tensor, " f"],
    ) -> Float[Tensor, "b l"]:
        first, *remaining = self.parts
        scores: Tensor = first(features, starts, values)
        for part in remaining:
            scores = scores + part(features, starts, values)
        return scores
