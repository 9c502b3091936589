"""`sgd`: every entry in float32, the baseline of all other codecs.

Law: lossless, and so unbiased, a contraction and summable. Bits: 32 an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import flat
from atomo.core.devices import to_device
from atomo.errors import CodecError

__all__ = ["DENSE", "Dense", "Entries"]


@dataclass(frozen=True)
class Entries:
    """Every entry of the flattened gradient."""

    values: Float[torch.Tensor, " n"]


LAWS: Final = frozenset({Law.LOSSLESS, Law.UNBIASED, Law.CONTRACTION, Law.SUMMABLE})


@final
@dataclass(frozen=True)
class Dense(Codec[Entries]):
    """Leaves the gradient alone, NaN and infinity included."""

    id: ClassVar[str] = "sgd"
    default_payload_type: ClassVar[type[Entries]] = Entries
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    @property
    def laws(self) -> frozenset[Law]:
        return LAWS

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Entries:
        del generator  # deterministic
        return Entries(flat(gradient, self.id))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Entries:
        # Not a view of the residual, which becomes zero.
        payload = self.encode(residual + gradient, generator)
        residual.zero_()
        return payload

    @property
    def wire_codec(self) -> Dense:
        return self

    def addend(self, payload: Entries) -> Float[torch.Tensor, " n"]:
        return payload.values

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return (Field(torch.float32, (shape.numel(),)),)

    def cost(self, payload: Entries, shape: torch.Size) -> DecodeCost:
        return DecodeCost(shape.numel())

    def add_decoded(
        self, payload: Entries, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        if payload.values.numel() != out.numel():
            raise CodecError(f"sgd: {payload.values.numel()} values for {out.numel()} entries")
        out.add_(to_device(payload.values, out.device).view(out.shape), alpha=scale)


DENSE: Final[Dense] = Dense()
