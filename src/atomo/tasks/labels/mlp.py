"""A network with one hidden layer, whose input is as sparse as a bag of words."""

import math
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import EmbeddingBag, Linear, Module, Parameter
from torch.nn.functional import relu

__all__ = ["SparseMLP"]


@final
class SparseMLP(Module):
    """Scores of labels, from the features that a sample has.

    Its first layer adds up the rows of these features alone, forward and backward: a step costs
    what the samples have, not what there is.
    """

    def __init__(
        self, features: int, hidden: int, square: float, rates: Float[Tensor, " l"]
    ) -> None:
        """Draws the first weights.

        Args:
            features: that a sample may have.
            hidden: units between.
            square: mean squared length of a sample; hidden units begin with a variance of one.
            rates: share of the samples that has each label, with which their scores begin.
        """
        super().__init__()
        self.first = EmbeddingBag(
            features, hidden, mode="sum", sparse=True, include_last_offset=True
        )
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
        hidden = self.first(features, starts, per_sample_weights=values) + self.bias
        scores: Tensor = self.last(relu(hidden))
        return scores
