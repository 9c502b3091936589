"""Codecs of one bit an entry: its sign.

Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018 (also
Signum); Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
ICML 2019 (EF-signSGD).
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

__all__ = ["EFSignSGD", "SignSGD", "Signs", "Signum"]


@dataclass(frozen=True)
class Signs:
    """scale * sign: the bit is 1 for a negative entry, -0.0 included, and 0 for all others."""

    words: Int32[Tensor, " words"]
    scale: Float[Tensor, " one"]


@dataclass(frozen=True)
class Voting(Codec[Signs]):
    """What SignSGD and Signum share: each worker has a vote on the sign of each entry."""

    payload: ClassVar[type[Signs]] = Signs
    unit: ClassVar[Unit] = Unit.ENTRIES
    votes: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        """None: a vote says nothing about magnitudes, and its direction is biased."""
        return frozenset()

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Signs:
        del generator  # deterministic
        words, largest = sign.pack_signs(flat(gradient, self.id))
        if not math.isfinite(largest):
            raise CodecError(f"{self.id}: the gradient holds {largest}, which has no sign to send")
        return Signs(words, gradient.new_tensor([float(largest > 0)]))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return sign_fields(shape)

    def add_decoded(self, payload: Signs, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        if payload.scale.tolist() not in ([0.0], [1.0]):
            raise CodecError(f"{self.id}: scale {payload.scale.tolist()[:4]}; 0 or 1 is expected")
        unit = scale * float(payload.scale)
        add_flat(out, self.id, lambda entries: sign.add_signs(payload.words, unit, -unit, entries))

    def finish(self, mean: Float[Tensor, "..."]) -> None:
        """The majority: its sign, or 0 on a tie, which rounding in the mean must not decide."""
        mean.round_(decimals=4).sign_()


@final
@dataclass(frozen=True)
class SignSGD(Voting):
    """The sign of every entry, decoded to 1 or -1; the aggregate is the majority's sign.

    0.0 votes 1 and -0.0 votes -1, but a gradient of zeros alone abstains and decodes to 0. Step
    sizes are those of Adam rather than of SGD: an update has no magnitude but the learning rate.
    """

    id: ClassVar[str] = "signsgd"
    memory: ClassVar[str | None] = "none"


@final
@dataclass(frozen=True)
class Signum(Voting):
    """`signsgd` of each worker's moving average of gradients, which its memory keeps."""

    id: ClassVar[str] = "signum"
    memory: ClassVar[str | None] = "momentum"


@final
@dataclass(frozen=True)
class EFSignSGD(Codec[Signs]):
    """The mean magnitude of a layer, with the sign of each entry. Needs a residual memory."""

    id: ClassVar[str] = "efsignsgd"
    payload: ClassVar[type[Signs]] = Signs
    unit: ClassVar[Unit] = Unit.MATRIX

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Signs:
        del generator  # deterministic
        return self.of(flat(gradient, self.id))

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Signs:
        if not kept.is_contiguous():
            return super().encode_residual(gradient, kept, generator)
        entries = flat(kept, self.id)
        payload = self.of(entries, flat(gradient, self.id))
        unit = float(payload.scale)
        sign.add_signs(payload.words, -unit, unit, entries)
        return payload

    def of(self, values: Float[Tensor, " n"], added: Float[Tensor, " n"] | None = None) -> Signs:
        """The payload of `values`, once `added` is added to it, in place."""
        words, positive, negative, _ = sign.add_pack_sum(values, added)
        if not math.isfinite(positive - negative):
            raise CodecError("efsignsgd: the gradient holds NaN or infinity")
        return Signs(words, values.new_tensor([(positive - negative) / len(values)]))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return sign_fields(shape)

    def add_decoded(self, payload: Signs, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        if len(payload.scale) != 1:
            raise CodecError(f"efsignsgd: {len(payload.scale)} scales; 1 is expected")
        unit = scale * float(payload.scale)
        add_flat(out, self.id, lambda entries: sign.add_signs(payload.words, unit, -unit, entries))


def sign_fields(shape: Size) -> tuple[Field, ...]:
    """The bounds of `Signs`."""
    return Field(torch.int32, (sign.word_count(shape.numel()),)), Field(torch.float32, (1,))
