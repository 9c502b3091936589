"""The last layer of a language model: scores of all words."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import linear

__all__ = ["WordScores"]


@final
class WordScores(Module):
    """A linear layer, of its own or with the vectors of the words that are read.

    Inan, Khosravi and Socher, "Tying Word Vectors and Word Classifiers", ICLR 2017.
    """

    def __init__(self, words: int, width: int, spread: float, tied: bool) -> None:
        """Draws the first weights.

        Args:
            words: the number of words.
            width: numbers a word.
            spread: of the first weights: uniform, minus to plus this.
            tied: whether the layer has no weights of its own.
        """
        super().__init__()
        own = None if tied else Parameter(torch.empty(words, width).uniform_(-spread, spread))
        self.weight: Parameter | None
        self.register_parameter("weight", own)
        self.bias = Parameter(torch.zeros(words))

    def forward(
        self, states: Float[Tensor, "b t d"], vectors: Float[Tensor, "v d"]
    ) -> Float[Tensor, "b t v"]:
        return linear(states, vectors if self.weight is None else self.weight, self.bias)
