"""A class from a pretrained encoder."""

from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import Dropout, Linear, Module

__all__ = ["EncoderClassifier"]

SPREAD: Final = 0.02  # standard deviation of the head's first weights, as BERT's


@final
class EncoderClassifier(Module):
    """A classifier: dropout and a linear layer on the pooled output of an encoder, or
    on its first token where it pools nothing.

    Devlin et al., "BERT", NAACL 2019.
    """

    def __init__(self, encoder: Module, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = Dropout(dropout)
        self.head = Linear(width, classes)
        torch.nn.init.normal_(self.head.weight, std=SPREAD)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self, tokens: Int64[Tensor, "b t"], mask: Int64[Tensor, "b t"]
    ) -> Float[Tensor, "b c"]:
        encoded = self.encoder(input_ids=tokens, attention_mask=mask)
        pooled = getattr(encoded, "pooler_output", None)
        scores: Tensor = self.head(
            self.dropout(encoded.last_hidden_state[:, 0] if pooled is None else pooled)
        )
        return scores
