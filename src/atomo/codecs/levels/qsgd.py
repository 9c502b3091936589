"""QSGD: each entry rounded at random to one of a few levels of its bucket's norm.

For a bucket v of n entries with norm r, and s levels above zero, let a = |v_i| s / r. Then v_i is
sent as its sign and the level floor(a) + 1 with probability a - floor(a), else floor(a), and is
decoded to sign * level * r / s.

Law: unbiased, with a variance of at most min(n / (4 s^2), sqrt(n) / s) ||v||^2 a bucket.
Bits: 4.06 an entry packed by default, 1.8 when coded; 32 for each norm.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
NIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import as_codec_error, check_known
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.levels.payload import (
    CODINGS,
    TAIL,
    Levels,
    add_level_payloads,
    level_cost,
    level_fields,
    to_levels,
)
from atomo.errors import ConfigError
from atomo.kernels import quantise

__all__ = ["QSGD"]

NORMS: Final = {"l2": quantise.EUCLIDEAN, "max": quantise.LARGEST}
MOST: Final = 255  # levels


@final
@dataclass(frozen=True)
class QSGD(Codec[Levels]):
    """s = 2^bits - 1 levels, of buckets that run across layers.

    Raises:
        ConfigError: a setting is out of range.
    """

    bits: int = 4
    """s = 2^bits - 1 levels above zero; the sign is apart. Lower => more compression."""
    bucket_size: int = 512
    """Entries that share a norm; 0: all entries. Higher => smaller and noisier."""
    norm: str = "l2"
    """The norm of a bucket: "l2", or "max", with less noise and more bytes."""
    levels: int = 0
    """s itself, where it is not to be 2^bits - 1; 0: take `bits`."""
    coding: str = "entropy"
    """"entropy": a Huffman code for packed levels; "packed": only these, larger and faster."""

    id: ClassVar[str] = "qsgd"
    default_payload_type: ClassVar[type[Levels]] = Levels
    batch_decodes_on_gpu: ClassVar[bool] = True
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    accepts_half: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("bits", 1, 8), ("levels", 0, MOST), ("bucket_size", 0, 2**31)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"qsgd: {name} must be in {low}..{high}, got {getattr(self, name)}"
                )
        if self.levels and self.bits != QSGD.bits:
            raise ConfigError(
                f"qsgd: bits={self.bits} and levels={self.levels} both set the number of "
                f"levels, and bits={self.bits} means {2**self.bits - 1}; leave out one"
            )
        check_known(self.id, "norm", self.norm, NORMS)
        check_known(self.id, "coding", self.coding, CODINGS)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    @property
    def error_bound(self) -> float:
        # With f_i the fraction of |v_i| s / r the variance is (r / s)^2 sum f_i (1 - f_i). Each
        # term is at most 1/4 and at most |v_i| s / r, of which the sum is at most sqrt(n) s; r is
        # at most |v|.
        entries, highest = self.bucket_size or math.inf, self.highest_level
        bound = min(entries / (4 * highest**2), math.sqrt(entries) / highest)
        # No entry moves by more than r / s, which is the largest magnitude over s.
        return min(bound, 1 / highest**2) if self.norm == "max" else bound

    @property
    def highest_level(self) -> int:
        """The number s of levels above zero."""
        return self.levels or 2**self.bits - 1

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Levels:
        values = flat(gradient, self.id)
        bucket = self.bucket(len(values))
        norms = values.new_empty(-(-len(values) // bucket), dtype=torch.float32)
        # Of value / norm, were the values Gaussian: with r = sqrt(n) sigma, or r the largest of
        # them, which is near the end of the tail.
        spread = 1 / math.sqrt(bucket) if self.norm == "l2" else 1 / TAIL
        with as_codec_error(self.id, "the gradient holds"):
            return to_levels(
                values,
                norms,
                bucket,
                NORMS[self.norm],
                self.highest_level,
                spread,
                self.coding,
                generator,
            )

    def bucket(self, entries: int) -> int:
        """Returns the number of entries that share a norm."""
        return min(self.bucket_size or entries, entries)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return level_fields(entries, -(-entries // max(1, self.bucket(entries))))

    def cost(self, payload: Levels, shape: torch.Size) -> DecodeCost:
        return super().cost(payload, shape) + level_cost(payload)

    def add_decoded(
        self, payload: Levels, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Levels], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        bucket = self.bucket(out.numel())
        with adding_to(out, self.id) as entries:
            add_level_payloads(payloads, bucket, self.highest_level, entries, scale)
