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
from atomo.core.devices import to_device
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
        thresholds = levels[:, 0] + (levels[:, 1] - levels[:, 0]) / 2
        # The sign bit of threshold - magnitude is 1 where the upper level is nearer.
        below = spread(thresholds, bucket, len(entries)) - entries.abs()
        return TwoLevels(sign.pack_signs(entries)[0], sign.pack_signs(below)[0], levels)

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
            decoded = self.magnitudes(payload, torch.zeros_like(entries))
            signs = torch.zeros_like(entries)
            sign.add_signs(payload.signs, 1.0, -1.0, signs)
            entries.add_(decoded.mul_(signs), alpha=scale)

    def magnitudes(
        self, payload: TwoLevels, outer: Float[torch.Tensor, " n"]
    ) -> Float[torch.Tensor, " n"]:
        """Returns the magnitudes of an untrusted payload; `outer` are zeros, and scratch space.

        Raises:
            ValueError: the payload does not fit.
        """
        buckets = self.buckets(len(outer))
        if payload.levels.shape != (buckets, 2):
            raise ValueError(f"levels of shape {tuple(payload.levels.shape)}, not ({buckets}, 2)")
        sign.add_signs(payload.outer, 0.0, 1.0, outer)
        levels = to_device(payload.levels, outer.device)
        bucket = self.bucket(len(outer))
        lower, upper = (spread(levels[:, side], bucket, len(outer)) for side in range(2))
        return torch.where(outer > 0, upper, lower)


def spread(
    numbers: Float[torch.Tensor, " buckets"], bucket: int, entries: int
) -> Float[torch.Tensor, " n"]:
    """Returns the number of each entry's bucket."""
    return numbers[:, None].expand(-1, bucket).reshape(-1)[:entries]
