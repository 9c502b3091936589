"""Half-precision casts: two bytes an entry, rounded to nearest.

What rounding drops is biased within a step, so by default a residual memory keeps it. Micikevicius
et al., "Mixed Precision Training", ICLR 2018, on why half-precision gradients need a scale.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import flat
from atomo.errors import CodecError
from atomo.kernels import cast

__all__ = ["BFloat16", "Float16"]

LARGEST_EXPONENT = 15  # of a finite float16
SAMPLED = 4096  # entries
ROOM = 16


@dataclass(frozen=True)
class Scaled:
    """The entries of the flattened gradient over `scale`, a power of two."""

    values: Float[Tensor, " n"]
    scale: Float[Tensor, " 1"]


@dataclass(frozen=True)
class Rounded:
    """The entries of the flattened gradient."""

    values: Float[Tensor, " n"]


@final
@dataclass(frozen=True)
class Float16(Codec[Scaled]):
    """IEEE half precision behind a power-of-two scale that puts the largest entry near the top.

    Gradients are often below 6e-5, the smallest normal float16; the scale costs nothing in
    precision and makes both underflow and overflow harmless. A sample tells it, with room for
    entries 16 times as large, so that rounding and looking for the largest take one pass; where
    that is not enough they take another.
    """

    id: ClassVar[str] = "fp16"
    payload: ClassVar[type[Scaled]] = Scaled
    unit: ClassVar[Unit] = Unit.ENTRIES
    fine: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Scaled:
        del generator  # deterministic
        entries = flat(gradient, self.id)
        scale = guessed_scale(entries, None)
        values, peak = cast.to_half(entries, scale)
        if not reaches(checked(peak, self.id), scale):
            scale = power_of_two_below(peak)
            values, _ = cast.to_half(entries, scale)
        return Scaled(values, gradient.new_tensor([scale]))

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Scaled:
        if not kept.is_contiguous():
            return super().encode_residual(gradient, kept, generator)
        entries, added = flat(kept, self.id), flat(gradient, self.id)
        scale = guessed_scale(entries, added)
        values, peak = cast.add_to_half(entries, added, scale)
        payload = Scaled(values, gradient.new_tensor([scale]))
        if not reaches(checked(peak, self.id), scale):
            self.add_decoded(payload, kept)  # takes it back
            payload = self.encode(kept, generator)
            self.add_decoded(payload, kept, -1.0)
        return payload

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return Field(torch.float16, (shape.numel(),)), Field(torch.float32, (1,))

    def add_decoded(self, payload: Scaled, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        values, unit = payload.values, payload.scale
        if values.numel() != out.numel() or unit.numel() != 1:
            raise CodecError(
                f"fp16: {values.numel()} values and {unit.numel()} scales for {out.numel()} entries"
            )
        out.add_(values.to(out.device).view(out.shape), alpha=scale * float(unit))


@final
@dataclass(frozen=True)
class BFloat16(Codec[Rounded]):
    """The upper half of a float32: its range, with 8 bits of precision."""

    id: ClassVar[str] = "bf16"
    payload: ClassVar[type[Rounded]] = Rounded
    unit: ClassVar[Unit] = Unit.ENTRIES
    fine: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Rounded:
        del generator  # deterministic
        values, peak = cast.to_brain(flat(gradient, self.id))
        return self.fitting(values, peak)

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Rounded:
        if not kept.is_contiguous():
            return super().encode_residual(gradient, kept, generator)
        return self.fitting(*cast.add_to_brain(flat(kept, self.id), flat(gradient, self.id)))

    def fitting(self, values: Tensor, peak: float) -> Rounded:
        """The payload, once its largest entry before rounding is seen to be within reach."""
        if checked(peak, self.id) > torch.finfo(torch.bfloat16).max:
            raise CodecError(f"bf16: {peak:g} would round to infinity")
        return Rounded(values)

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return (Field(torch.bfloat16, (shape.numel(),)),)

    def add_decoded(self, payload: Rounded, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        if payload.values.numel() != out.numel():
            raise CodecError(f"bf16: {payload.values.numel()} values for {out.numel()} entries")
        out.add_(payload.values.to(out.device).view(out.shape), alpha=scale)


def checked(peak: float, codec: str) -> float:
    """The largest magnitude, which is where NaN and infinity show."""
    if not math.isfinite(peak):
        raise CodecError(f"{codec}: the gradient holds {peak}, and only finite values can be cast")
    return peak


def guessed_scale(entries: Float[Tensor, " n"], added: Float[Tensor, " n"] | None) -> float:
    """A scale that likely has room for all entries, or for their sums: told by some of them."""
    stride = max(1, len(entries) // SAMPLED)
    some = entries[::stride] if added is None else entries[::stride] + added[::stride]
    peak = float(some.abs().max())
    return power_of_two_below(ROOM * peak) if stride > 1 else power_of_two_below(peak)


def reaches(peak: float, scale: float) -> bool:
    """Whether a scale has room for entries up to `peak`, and no more than it should."""
    exact = power_of_two_below(peak)
    return exact <= scale <= ROOM * exact


def power_of_two_below(peak: float) -> float:
    """The scale that brings `peak` just under the largest float16. 1 where that says nothing."""
    if not 0 < peak < math.inf:
        return 1.0
    _, exponent = math.frexp(peak)  # peak < 2**exponent
    # Below 2**-126 the scale itself would be a denormal float32, which some processors flush.
    return math.ldexp(1.0, max(exponent - LARGEST_EXPONENT, -126))
