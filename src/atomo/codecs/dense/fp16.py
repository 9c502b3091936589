"""`fp16`: half precision, with a scale, a power of two that brings the largest entry near the top.

Gradients are often below 6e-5, the smallest normal float16: a cast alone would lose them. The scale
costs no precision, and prevents harm by underflow and overflow.

Law: contraction, and summable in float32; rounding to nearest is biased within a step, so a
residual memory keeps the rounding errors. Bits: 16 an entry.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, on why such gradients need a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import require_finite
from atomo.codecs.flat import flat
from atomo.core.devices import to_device
from atomo.errors import CodecError
from atomo.kernels import cast

__all__ = ["Float16"]

LARGEST_EXPONENT: Final = 15  # of a finite float16
SAMPLED: Final = 4096  # entries
ROOM: Final = 16  # times the largest of the sample; more => small entries lose more precision


@dataclass(frozen=True)
class Scaled:
    """The entries of the flattened gradient over `scale`, a power of two."""

    values: Float[torch.Tensor, " n"]
    scale: Float[torch.Tensor, " 1"]


@final
@dataclass(frozen=True)
class Float16(Codec[Scaled]):
    """IEEE half precision with a scale.

    A sample determines the scale, with room for entries 16 times as large, so that rounding and the
    search for the largest entry take one pass; if the room is too small they take a second pass.
    """

    id: ClassVar[str] = "fp16"
    default_payload_type: ClassVar[type[Scaled]] = Scaled
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    near_lossless: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION, Law.SUMMABLE})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Scaled:
        del generator  # deterministic
        entries = flat(gradient, self.id)
        scale = guessed_scale(entries, None)
        values, peak = cast.to_half(entries, scale)
        require_finite(self.id, math.isfinite(peak))
        if not reaches(peak, scale):
            scale = power_of_two_below(peak)
            values, _ = cast.to_half(entries, scale)
        return Scaled(values, torch.tensor([scale]))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Scaled:
        if not residual.is_contiguous():
            return super().encode_residual(gradient, residual, generator)
        entries, added = flat(residual, self.id), flat(gradient, self.id)
        scale = guessed_scale(entries, added)
        values, peak = cast.add_to_half(entries, added, scale)
        require_finite(self.id, math.isfinite(peak))
        payload = Scaled(values, torch.tensor([scale]))
        if not reaches(peak, scale):
            self.add_decoded(payload, residual)  # takes it back
            payload = self.encode(residual, generator)
            self.add_decoded(payload, residual, -1.0)
        return payload

    @property
    def wire_codec(self) -> "Float16":
        return self

    def addend(self, payload: Scaled) -> Float[torch.Tensor, " n"]:
        return payload.values.float().mul_(float(payload.scale))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return Field(torch.float16, (shape.numel(),)), Field(torch.float32, (1,))

    def add_decoded(
        self, payload: Scaled, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        values, unit = payload.values, payload.scale
        if values.numel() != out.numel() or unit.numel() != 1:
            raise CodecError(
                f"fp16: {values.numel()} values and {unit.numel()} scales for {out.numel()} entries"
            )
        out.add_(to_device(values, out.device).view(out.shape), alpha=scale * float(unit))


def guessed_scale(
    entries: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None
) -> float:
    """Estimates from a sample a scale that fits all entries, or all sums of two vectors."""
    stride = max(1, len(entries) // SAMPLED)
    sample = entries[::stride] if added is None else entries[::stride] + added[::stride]
    peak = float(sample.abs().max())
    return power_of_two_below(ROOM * peak) if stride > 1 else power_of_two_below(peak)


def reaches(peak: float, scale: float) -> bool:
    """Returns True if a scale fits entries up to `peak` and is at most ROOM times too large."""
    exact = power_of_two_below(peak)
    return exact <= scale <= ROOM * exact


def power_of_two_below(peak: float) -> float:
    """Returns the scale that brings `peak` just under the largest float16; 1 if `peak` is 0 or
    infinite.
    """
    if not 0 < peak < math.inf:
        return 1.0
    _, exponent = math.frexp(peak)  # peak < 2**exponent
    # Below 2**-126 the scale itself would be a denormal float32, which some processors flush.
    return math.ldexp(1.0, max(exponent - LARGEST_EXPONENT, -126))
