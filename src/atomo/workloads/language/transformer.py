"""A small language model of attention: Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019; layer norms come first, and positions are learnt.
"""

import math
from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import (
    Dropout,
    Embedding,
    LayerNorm,
    Module,
    TransformerEncoder,
    TransformerEncoderLayer,
)

from atomo.workloads.language.scores import WordScores

__all__ = ["TransformerLanguageModel"]

SPREAD: Final = 0.02  # standard deviation of the first vectors of words and positions
INNER: Final = 4  # width of the hidden layers, over that of the model


@final
class TransformerLanguageModel(Module):
    """A transformer that scores the next word after each word of a window and its context."""

    def __init__(
        self,
        words: int,
        hidden: int,
        layers: int,
        heads: int,
        dropout: float,
        tied: bool,
        longest: int,
    ) -> None:
        super().__init__()
        self.embedding, self.positions = Embedding(words, hidden), Embedding(longest, hidden)
        for embedding in (self.embedding, self.positions):
            torch.nn.init.normal_(embedding.weight, std=SPREAD)
        self.dropout = Dropout(dropout)
        layer = TransformerEncoderLayer(
            hidden, heads, INNER * hidden, dropout, "gelu", batch_first=True, norm_first=True
        )
        norm = LayerNorm(hidden)
        self.layers = TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.scores = WordScores(words, hidden, SPREAD * math.sqrt(3), tied)

    def forward(self, tokens: Int64[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        length = tokens.shape[1]
        vectors = self.embedding(tokens) + self.positions.weight[:length]
        # Causal: a position attends to earlier positions only.
        unseen = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        states = self.layers(self.dropout(vectors), mask=unseen, is_causal=True)
        scores: Tensor = self.scores(states, self.embedding.weight)
        return scores
