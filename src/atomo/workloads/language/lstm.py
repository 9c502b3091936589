"""A language model of LSTMs: Zaremba, Sutskever and Vinyals, "Recurrent Neural Network
Regularization", 2014. Deep Gradient Compression (Lin et al., ICLR 2018) trained it with two layers
of 1500 units and tied word vectors.
"""

from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import LSTM, Dropout, Embedding, Module

from atomo.workloads.language.scores import WordScores

__all__ = ["LSTMLanguageModel"]

SPREAD: Final = 0.1  # of the first word vectors and scores


@final
class LSTMLanguageModel(Module):
    """An LSTM that scores each next word, after a context that is read without gradients.

    The context replaces the state that truncated backpropagation through time carries from window
    to window; both get no gradient. The context is read with the weights of the step, so a step
    depends only on weights and windows.
    """

    def __init__(
        self, words: int, hidden: int, layers: int, dropout: float, tied: bool, context: int
    ) -> None:
        super().__init__()
        self._context = context
        self.embedding = Embedding(words, hidden)
        torch.nn.init.uniform_(self.embedding.weight, -SPREAD, SPREAD)
        between = dropout if layers > 1 else 0.0
        self.lstm = LSTM(hidden, hidden, layers, batch_first=True, dropout=between)
        self.dropout = Dropout(dropout)
        self.scores = WordScores(words, hidden, SPREAD, tied)

    def forward(self, tokens: Int64[Tensor, "b t"]) -> Float[Tensor, "b s v"]:
        state = None
        if self._context:
            with torch.no_grad():
                _, state = self._read(tokens[:, : self._context], None)
        outputs, _ = self._read(tokens[:, self._context :], state)
        scores: Tensor = self.scores(self.dropout(outputs), self.embedding.weight)
        return scores

    def _read(
        self, tokens: Int64[Tensor, "b t"], state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        read: tuple[Tensor, tuple[Tensor, Tensor]]
        read = self.lstm(self.dropout(self.embedding(tokens)), state)
        return read
