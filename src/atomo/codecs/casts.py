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
from atomo.errors import CodecError

__all__ = ["BFloat16", "Float16"]

LARGEST_EXPONENT = 15  # of a finite float16


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
    precision and makes both underflow and overflow harmless.
    """

    id: ClassVar[str] = "fp16"
    payload: ClassVar[type[Scaled]] = Scaled
    unit: ClassVar[Unit] = Unit.ENTRIES

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Scaled:
        del generator  # deterministic
        scale = power_of_two_below(largest(gradient, self.id))
        values = (gradient.flatten() / scale).to(torch.float16)
        return Scaled(values, gradient.new_tensor([scale]))

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

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Rounded:
        del generator  # deterministic
        if largest(gradient, self.id) > torch.finfo(torch.bfloat16).max:
            raise CodecError(f"bf16: {float(gradient.abs().max()):g} would round to infinity")
        return Rounded(gradient.flatten().to(torch.bfloat16))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return (Field(torch.bfloat16, (shape.numel(),)),)

    def add_decoded(self, payload: Rounded, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        if payload.values.numel() != out.numel():
            raise CodecError(f"bf16: {payload.values.numel()} values for {out.numel()} entries")
        out.add_(payload.values.to(out.device).view(out.shape), alpha=scale)


def largest(gradient: Float[Tensor, "..."], codec: str) -> float:
    """The largest magnitude, which is where NaN and infinity show."""
    if not gradient.numel():
        raise CodecError(f"{codec}: cannot encode an empty gradient")
    low, high = gradient.aminmax()
    peak = max(-float(low), float(high))
    if not math.isfinite(peak):
        raise CodecError(f"{codec}: the gradient holds {peak}, and only finite values can be cast")
    return peak


def power_of_two_below(peak: float) -> float:
    """The scale that brings `peak` just under the largest float16. 1 for a gradient of zeros."""
    if not peak:
        return 1.0
    _, exponent = math.frexp(peak)  # peak < 2**exponent
    # Below 2**-126 the scale itself would be a denormal float32, which some processors flush.
    return math.ldexp(1.0, max(exponent - LARGEST_EXPONENT, -126))
