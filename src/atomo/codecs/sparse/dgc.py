"""Deep Gradient Compression's selection: a sampled threshold, adapted to the gradient.

A sample determines a threshold that about the share `ratio` of all magnitudes reaches. If too few
entries reach it, it is lowered, up to ten times; of too many entries the largest are selected. The
defaults of the sample and of the bounds are those of the authors' code. The memory `dgc` is its
momentum correction.

Law: contraction. Bits: those of `topk` at about the same ratio.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Granularity
from atomo.codecs.checks import check_known, check_ratio
from atomo.codecs.dense.dense import DENSE
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.payload import count_for
from atomo.codecs.sparse.search import Search
from atomo.codecs.sparse.selector import SCOPES, Selector
from atomo.core.devices import to_device
from atomo.errors import ConfigError
from atomo.kernels import selection as select

__all__ = ["DGC", "WARM_UP", "warm_up"]

WARM_UP: Final[tuple[float, ...]] = (0.25, 0.063, 0.015, 0.004, 0.001)
"""The published ratios of the first epochs."""
MOST_ITERATIONS: Final = 1000


def warm_up(ratio: float, epochs: int) -> tuple[float, ...]:
    """Returns the ratios of the warm-up epochs and of the epoch after them: they fall
    exponentially.

    >>> [round(value, 3) for value in warm_up(0.001, 2)]
    [0.1, 0.01, 0.001]

    Raises:
        ConfigError: the ratio is out of range, or `epochs` negative.
    """
    check_ratio("dgc", ratio)
    if epochs < 0:
        raise ConfigError(f"dgc: warm-up epochs must be 0 or more, got {epochs}")
    coefficient = ratio ** (1 / (epochs + 1))
    return tuple(coefficient ** (epoch + 1) for epoch in range(epochs + 1))


@final
@dataclass(frozen=True)
class DGC(Selector):
    """About the largest `ratio` of the entries: up to `upper_bound` times as many.

    Where even the last lower threshold finds too few, these few are sent.

    Raises:
        ConfigError: a setting is out of range.
    """

    ratio: float = 0.001
    """The share of the entries that is sent. Lower => more compression."""
    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the values."""
    scope: str = "layer"
    """The group of entries for `ratio`: "layer", as published, or "bucket", joined layers in which
    layers with larger entries get a larger share."""
    least: int = 64
    """The fewest entries that are sent; 1, as published, lets small layers wait for so long that a
    run without warm-up diverges."""
    sample_ratio: float = 0.01
    """The share of the entries in the sample."""
    strided_sample: bool = True
    """True samples at a constant stride; False samples at random places."""
    upper_bound: float = 1.3
    """The multiple of the wanted entries above which the largest are sent."""
    lower_bound: float = 0.8
    """While fewer than this times the wanted entries reach the threshold, it is multiplied by
    this."""
    iterations: int = 10
    """The most times that the threshold is lowered."""

    id: ClassVar[str] = "dgc"
    memory: ClassVar[str | None] = "dgc"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        check_known(self.id, "scope", self.scope, SCOPES)
        if self.least < 1:
            raise ConfigError(f"dgc: least must be 1 or more, got {self.least}")
        self.check_sampler()

    def check_sampler(self) -> None:
        """Raises ConfigError for a setting of the sample or of the bounds out of range."""
        for name, least, most in (
            ("sample_ratio", 0, 1),
            ("lower_bound", 0, 1),
            ("upper_bound", 0.999, 1e6),
            ("iterations", -1, MOST_ITERATIONS),
        ):
            value = getattr(self, name)
            if not least < value <= most:
                wanted = {0: "above 0", 0.999: "1 or more", -1: "0 or more"}[least]
                raise ConfigError(f"dgc: {name} must be {wanted} and at most {most:g}, got {value}")

    @property
    def granularity(self) -> Granularity:
        return SCOPES[self.scope]

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        n = len(search)
        sample, rank = self.sample(n, generator, search.device)
        return search.by_sample(sample, rank, self.bounds(n))

    def sample(
        self, n: int, generator: torch.Generator, device: torch.device
    ) -> tuple[range | Int64[torch.Tensor, " m"], int]:
        """Returns the places of a sample of `n` entries, and the rank in it of the smallest
        magnitude in its top `ratio`.
        """
        share = max(self.ratio, self.wanted(n) / n)
        fewest = math.ceil(min(2 / share, n))  # which may be infinite
        samples = max(math.ceil(self.sample_ratio * n), fewest)
        places = self.places(n, samples, generator, device)
        return places, math.ceil(len(places) * share)

    def bounds(self, entries: int) -> select.Bounds:
        """Returns how many of a number of entries may be sent."""
        return select.Bounds(
            self.wanted(entries), self.lower_bound, self.upper_bound, self.iterations
        )

    def places(
        self, n: int, samples: int, generator: torch.Generator, device: torch.device
    ) -> range | Int64[torch.Tensor, " m"]:
        """Returns the increasing indices of the sample among `n` entries."""
        if samples >= n:
            return range(n)
        home = generator.device
        if not self.strided_sample:
            drawn = torch.randint(n, (samples,), generator=generator, device=home)
            return to_device(drawn.sort().values, device)
        # One more than a multiple of 32, as published: layers often have rows of 32 k entries, and
        # a stride with a factor in common would sample some of their columns only.
        stride = math.ceil(n / samples / 32) * 32 + 1
        # A start after the end would sample nothing.
        start = int(torch.randint(min(stride, n), (), generator=generator, device=home))
        return range(start, n, stride)

    def wanted(self, entries: int) -> int:
        """Returns the target number of entries to send."""
        return min(entries, max(self.least, count_for(self.ratio, entries)))

    def max_count(self, shape: torch.Size) -> int:
        entries = shape.numel()
        return min(entries, math.floor(self.upper_bound * self.wanted(entries)))
