"""What signSGD and its kin send: a bit for each entry, and a scale for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Field
from atomo.kernels import sign

__all__ = ["Signs", "sign_fields"]


@dataclass(frozen=True)
class Signs:
    """scale * sign: the bit is 1 for a negative entry, -0.0 included, and 0 for all others."""

    words: Int32[torch.Tensor, " words"]
    scale: Float[torch.Tensor, " one"]


def sign_fields(shape: torch.Size) -> tuple[Field, ...]:
    """The bounds of `Signs`."""
    return Field(torch.int32, (sign.word_count(shape.numel()),)), Field(torch.float32, (1,))
