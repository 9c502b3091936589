"""Two layers of LSTMs in both directions (Graves and Schmidhuber, 2005), and a class from them."""

from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import LSTM, Dropout, Embedding, Linear, Module
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from atomo.workloads.text.vocabulary import PADDING

__all__ = ["BiLSTM"]

LAYERS = 2
SPREAD = 0.1  # standard deviation of the vectors of words that none is given for


@final
class BiLSTM(Module):
    """Scores of classes, from the last layer's [h, c, out].

    h and c are its last states in both directions, out the mean of its outputs over the words.
    """

    def __init__(
        self, words: int, dimension: int, hidden: int, classes: int, dropout: float = 0.3
    ) -> None:
        super().__init__()
        self.embedding = Embedding(words, dimension, padding_idx=PADDING)
        torch.nn.init.normal_(self.embedding.weight, std=SPREAD)
        self.lstm = LSTM(
            dimension, hidden, LAYERS, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.dropout = Dropout(dropout)
        self.head = Linear(3 * 2 * hidden, classes)

    def forward(
        self, tokens: Int64[Tensor, "b t"], lengths: Int64[Tensor, " b"]
    ) -> Float[Tensor, "b c"]:
        # Packed, so that padding has no effect on the scores.
        vectors = self.embedding(tokens)
        packed = pack_padded_sequence(
            vectors, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, (h, c) = self.lstm(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True)
        mean = padded.sum(1) / lengths[:, None]
        ends = [torch.cat(tuple(state[-2:]), 1) for state in (h, c)]
        scores: Tensor = self.head(self.dropout(torch.cat([*ends, mean], 1)))
        return scores
