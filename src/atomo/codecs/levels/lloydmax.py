"""Lloyd-Max quantiser: the sign of each entry and one of two magnitudes.

The magnitudes are fitted to the entries, so that the squared error is least, or nearly.

Law: contraction, as each level is the mean of the magnitudes that it stands for. Bits: 2 an entry,
and 64 for each bucket.

S. P. Lloyd, "Least Squares Quantization in PCM", IEEE Transactions on Information Theory, 1982;
J. Max, "Quantizing for Minimum Distortion", IRE Transactions on Information Theory, 1960.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import require_finite
from atomo.codecs.flat import adding_to, flat
from atomo.errors import ConfigError
from atomo.kernels import lloyd, sign

__all__ = ["LloydMax"]


@dataclass(frozen=True)
class TwoLevels:
    """A sign and one of two magnitudes for each entry; words as of `kernels.sign`."""

    signs: Int32[torch.Tensor, " words"]
    """A bit for each entry: 1 for a negative one, -0.0 included."""
    outer: Int32[torch.Tensor, " outer"]
    """A bit for each entry: 1 for the upper magnitude."""
    levels: Float[torch.Tensor, "buckets 2"]
    """The lower and the upper magnitude of each bucket."""


@final
@dataclass(frozen=True)
class LloydMax(Codec[TwoLevels]):
    """The nearest of two magnitudes with the entry's sign. Needs a residual memory.

    Made for the values of a sparsifier, which are far from zero on both sides: an even grid would
    waste levels around zero.

    Raises:
        ConfigError: the size of a bucket is negative.
    """

    bucket_size: int = 4096
    """Consecutive entries that share two magnitudes; 0: all entries."""

    id: ClassVar[str] = "lloydmax"
    default_payload_type: ClassVar[type[TwoLevels]] = TwoLevels
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bucket_size < 0:
            raise ConfigError(f"lloydmax: bucket_size must be 0 or more, got {self.bucket_size}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> TwoLevels:
        del generator  # deterministic
        entries = flat(gradient, self.id)
        bucket = self.bucket(len(entries))
        levels = lloyd.two_levels(entries, bucket)
        require_finite(self.id, bool(levels.isfinite().all()))
        return TwoLevels(*lloyd.pack_levels(entries, bucket, levels), levels)

    def bucket(self, entries: int) -> int:
        """Returns the number of entries that share two magnitudes."""
        return min(self.bucket_size or entries, max(1, entries))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        words = Field(torch.int32, (sign.word_count(entries),))
        return words, words, Field(torch.float32, (self.buckets(entries), 2))

    def buckets(self, entries: int) -> int:
        """Returns the number of buckets."""
        return -(-entries // max(1, self.bucket(entries)))

    def add_decoded(
        self, payload: TwoLevels, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            levels = payload.levels * scale
            bucket = self.bucket(len(entries))
            lloyd.add_levels(payload.signs, payload.outer, levels, bucket, entries)
