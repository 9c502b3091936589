"""1-bit SGD: the sign of each entry, decoded to the mean of all entries of that sign.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs", Interspeech 2014. The means there are of a column; here, of a layer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int32
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import add_flat, flat
from atomo.errors import CodecError
from atomo.kernels import sign

__all__ = ["OneBit"]


@dataclass(frozen=True)
class Halves:
    """One of two values: the bit is 1 for a negative entry, -0.0 included, and 0 for all others."""

    words: Int32[Tensor, " words"]
    means: Float[Tensor, " two"]
    """Of the entries whose bit is 0, and of those whose bit is 1."""


@final
@dataclass(frozen=True)
class OneBit(Codec[Halves]):
    """The best two values for the signs of a layer. Needs a residual memory."""

    id: ClassVar[str] = "onebit"
    payload: ClassVar[type[Halves]] = Halves
    unit: ClassVar[Unit] = Unit.MATRIX

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Halves:
        del generator  # deterministic
        return self.of(flat(gradient, self.id))

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Halves:
        if not kept.is_contiguous():
            return super().encode_residual(gradient, kept, generator)
        entries = flat(kept, self.id)
        payload = self.of(entries, flat(gradient, self.id))
        positive, negative = payload.means.tolist()
        sign.add_signs(payload.words, -positive, -negative, entries)
        return payload

    def of(self, values: Float[Tensor, " n"], added: Float[Tensor, " n"] | None = None) -> Halves:
        """The payload of `values`, once `added` is added to it, in place."""
        words, positive, negative, count = sign.add_pack_sum(values, added)
        if not math.isfinite(positive - negative):
            raise CodecError("onebit: the gradient holds NaN or infinity")
        means = positive / max(count, 1), negative / max(len(values) - count, 1)
        return Halves(words, values.new_tensor(means))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return Field(torch.int32, (sign.word_count(shape.numel()),)), Field(torch.float32, (2,))

    def add_decoded(self, payload: Halves, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        if len(payload.means) != 2:
            raise CodecError(f"onebit: {len(payload.means)} means; 2 are expected")
        positive, negative = (scale * mean for mean in payload.means.tolist())
        add_flat(
            out, self.id, lambda entries: sign.add_signs(payload.words, positive, negative, entries)
        )
