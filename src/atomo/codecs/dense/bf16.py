"""`bf16`: the upper half of each float32: its range, with 8 bits of precision.

Law: contraction, and summable in float32; rounding to nearest is biased within a step, so a
residual memory keeps the rounding errors. Bits: 16 an entry, and fewer on the wire, where blosc
shortens the exponents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import require_finite
from atomo.codecs.flat import flat
from atomo.core.devices import to_device
from atomo.errors import CodecError
from atomo.kernels import cast

__all__ = ["BFloat16"]


@dataclass(frozen=True)
class Rounded:
    """The entries of the flattened gradient."""

    values: Float[torch.Tensor, " n"]


@final
@dataclass(frozen=True)
class BFloat16(Codec[Rounded]):
    """Rounds to nearest; refuses entries that would round to infinity."""

    id: ClassVar[str] = "bf16"
    default_payload_type: ClassVar[type[Rounded]] = Rounded
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    near_lossless: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION, Law.SUMMABLE})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Rounded:
        del generator  # deterministic
        values, peak = cast.to_brain(flat(gradient, self.id))
        return self.fitting(values, peak)

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Rounded:
        if not residual.is_contiguous():
            return super().encode_residual(gradient, residual, generator)
        return self.fitting(*cast.add_to_brain(flat(residual, self.id), flat(gradient, self.id)))

    def fitting(self, values: torch.Tensor, peak: float) -> Rounded:
        """Returns the payload after a check that its largest entry does not round to infinity."""
        require_finite(self.id, math.isfinite(peak))
        if peak > torch.finfo(torch.bfloat16).max:
            raise CodecError(f"bf16: {peak:g} would round to infinity")
        return Rounded(values)

    @property
    def wire_codec(self) -> "BFloat16":
        return self

    def addend(self, payload: Rounded) -> Float[torch.Tensor, " n"]:
        return payload.values.float()

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return (Field(torch.bfloat16, (shape.numel(),)),)

    def add_decoded(
        self, payload: Rounded, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        if payload.values.numel() != out.numel():
            raise CodecError(f"bf16: {payload.values.numel()} values for {out.numel()} entries")
        out.add_(to_device(payload.values, out.device).view(out.shape), alpha=scale)
