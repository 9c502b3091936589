"""QSGD: each entry rounded at random to one of a few levels of its bucket's norm.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NIPS 2017.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int16, Int32, UInt8
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.cost import Cost
from atomo.codecs.flat import add_flat, draw_seed, flat
from atomo.errors import CodecError, ConfigError
from atomo.kernels import entropy, quantise

__all__ = ["CODINGS", "QSGD", "Levels", "add_levels", "level_cost", "level_fields", "to_levels"]

NORMS: Final = {"l2": quantise.EUCLIDEAN, "max": quantise.LARGEST}
CODINGS: Final = ("entropy", "packed")
MOST = 255  # levels
CHECKED = 12  # bytes that an escaped level takes while it is checked
TAIL = 3.2  # standard deviations; beyond it a level may cost more than it would in a wider form


@dataclass(frozen=True)
class Levels:
    """Signed levels, several to a byte, of buckets with a norm each."""

    norms: Float[Tensor, " buckets"]
    form: UInt8[Tensor, " one"]
    """Which of `kernels.quantise.FORMS` the levels are packed in."""
    words: Int32[Tensor, " words"]
    """What `kernels.entropy.compress` made of the packed levels."""
    escapes: Int16[Tensor, " escaped"]
    """The levels of those bytes that could not hold theirs."""


@final
@dataclass(frozen=True)
class QSGD(Codec[Levels]):
    """Unbiased; its variance is at most min(n / s^2, sqrt(n) / s) ||v||^2 a bucket of n entries.

    Raises:
        ConfigError: a setting is out of range.
    """

    bits: int = 4
    """s = 2^bits - 1 levels above zero; the sign is apart. Lower => more compression."""
    bucket_size: int = 512
    """Entries that share a norm; 0: all of them. Higher => smaller and noisier."""
    norm: str = "l2"
    """The norm of a bucket: "l2", or "max", with less noise and more bytes."""
    levels: int = 0
    """s itself, where it is not to be 2^bits - 1; 0: take `bits`."""
    coding: str = "entropy"
    """"entropy": a Huffman code for packed levels; "packed": only these, larger and faster."""

    id: ClassVar[str] = "qsgd"
    payload: ClassVar[type[Levels]] = Levels
    unit: ClassVar[Unit] = Unit.ENTRIES

    def __post_init__(self) -> None:
        for name, least, most in (("bits", 1, 8), ("levels", 0, MOST), ("bucket_size", 0, 2**31)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(
                    f"qsgd: {name} must be in {least}..{most}, got {getattr(self, name)}"
                )
        for name, known in (("norm", tuple(NORMS)), ("coding", CODINGS)):
            if (value := getattr(self, name)) not in known:
                raise ConfigError(f"qsgd: {name} must be one of {', '.join(known)}; got {value!r}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    @property
    def most(self) -> int:
        """The number s of levels above zero."""
        return self.levels or 2**self.bits - 1

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Levels:
        values = flat(gradient, self.id)
        bucket = self.bucket(len(values))
        norms = values.new_empty(-(-len(values) // bucket))
        spread = 1 / math.sqrt(bucket) if self.norm == "l2" else 1 / TAIL
        try:
            return to_levels(
                values, norms, bucket, NORMS[self.norm], self.most, spread, self.coding, generator
            )
        except ValueError as error:
            raise CodecError(f"qsgd: the gradient holds {error}") from error

    def bucket(self, entries: int) -> int:
        """How many entries share a norm."""
        return min(self.bucket_size or entries, entries)

    def fields(self, shape: Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return level_fields(entries, -(-entries // max(1, self.bucket(entries))))

    def cost(self, payload: Levels, shape: Size) -> Cost:
        return super().cost(payload, shape) + level_cost(payload)

    def add_decoded(self, payload: Levels, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        bucket = self.bucket(out.numel())
        add_flat(
            out, self.id, lambda entries: add_levels(payload, bucket, self.most, entries, scale)
        )


def to_levels(
    values: Float[Tensor, " n"],
    norms: Float[Tensor, " buckets"],
    bucket: int,
    kind: int,
    most: int,
    spread: float,
    coding: str,
    generator: Generator,
) -> Levels:
    """Rounds and packs, in the first form in which few levels are expected to be out of reach.

    Args:
        values: at least one.
        norms: given, or filled here, as `kind` says.
        bucket: values to a norm.
        kind: GIVEN, EUCLIDEAN or LARGEST of `kernels.quantise`.
        most: the highest level.
        spread: the standard deviation expected of value / norm.
        coding: one of CODINGS.
        generator: the source of the kernel's seed.

    Raises:
        ValueError: a norm is not finite.
    """
    seed = draw_seed(generator)
    for number, form in enumerate(quantise.FORMS):
        if form is quantise.FORMS[-1] or form.base // 2 >= min(most, TAIL * spread * most):
            found = quantise.quantise(values, norms, bucket, kind, most, form, seed)
            if found is not None:
                symbols, escapes = found
                words = entropy.compress(symbols, coding == "entropy", form.base == 3)
                return Levels(norms, torch.tensor([number], dtype=torch.uint8), words, escapes)
    raise AssertionError("the last form holds any levels")


def level_fields(entries: int, buckets: int) -> tuple[Field, ...]:
    """The bounds of `Levels` for so many entries and norms."""
    words = entries // 4 + 1 + entropy.OVERHEAD
    return (
        Field(torch.float32, (buckets,)),
        Field(torch.uint8, (1,)),
        Field(torch.int32, (words,)),
        Field(torch.int16, (entries + quantise.FORMS[0].digits,)),
    )


def level_cost(payload: Levels) -> Cost:
    """What it takes to check the escaped levels, above what is usual for all."""
    return Cost(len(payload.escapes), CHECKED * len(payload.escapes))


def add_levels(
    payload: Levels, bucket: int, most: int, out: Float[Tensor, " n"], scale: float
) -> None:
    """Adds `scale` times the decoded entries to `out`, in place.

    Raises:
        ValueError: the payload does not fit; `out` is unchanged.
    """
    buckets = -(-len(out) // bucket)
    forms, norms = payload.form, payload.norms
    if len(norms) != buckets or len(forms) != 1 or int(forms) >= len(quantise.FORMS):
        raise ValueError(f"{len(norms)} norms in form {forms.tolist()[:4]} for {len(out)} entries")
    form = quantise.FORMS[int(forms)]
    symbols = entropy.decompress(payload.words, quantise.symbol_count(len(out), form))
    quantise.add_levels(
        symbols.to(out.device), payload.escapes, norms, bucket, most, form, out, scale
    )
