"""Deep Gradient Compression's selection: a sampled threshold, adapted to the gradient.

A sample determines a threshold that about the share `ratio` of all magnitudes reaches. If too few
entries reach it, it is lowered, up to ten times; of too many entries the largest are selected. The
memory `dgc` is its momentum correction.

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
from atomo.errors import ConfigError
from atomo.kernels import selection as select

__all__ = ["DGC", "WARM_UP", "warm_up"]

WARM_UP: Final[tuple[float, ...]] = (0.25, 0.063, 0.015, 0.004, 0.001)
"""The published ratios of the first epochs."""
SAMPLED: Final = 0.01  # of the entries
# The adaptation, in the figures of the authors' code. Entries found over entries aimed at:
TOO_MANY: Final = 1.3  # above it the largest entries are selected
TOO_FEW: Final = 0.8  # below it the threshold is lowered,
LOWERED_BY: Final = 0.8  # to so much of itself,
LOWERINGS: Final = 10  # but no more often


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
    """About the largest `ratio` of the entries: up to 1.3 times as many.

    Where even the tenth lower threshold finds too few, these few are sent.

    Raises:
        ConfigError: the ratio is out of range.
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

    id: ClassVar[str] = "dgc"
    memory: ClassVar[str | None] = "dgc"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        check_known(self.id, "scope", self.scope, SCOPES)
        if self.least < 1:
            raise ConfigError(f"dgc: least must be 1 or more, got {self.least}")

    @property
    def granularity(self) -> Granularity:
        return SCOPES[self.scope]

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return self.adapt(search, self.sampled_threshold(search, generator))

    def sampled_threshold(self, search: Search, generator: torch.Generator) -> int:
        """Returns the bits of the smallest magnitude in the top `ratio` of a strided sample."""
        n = len(search)
        share = max(self.ratio, self.wanted(n) / n)
        fewest = math.ceil(min(2 / share, n))  # which may be infinite
        start, stride = 0, 1
        if n > fewest:
            # One more than a multiple of 32, as published: layers often have rows of 32 k entries,
            # and a stride with a factor in common would sample some of their columns only.
            stride = math.ceil(n / max(math.ceil(SAMPLED * n), fewest) / 32) * 32 + 1
            # A start after the end would sample nothing.
            start = int(
                torch.randint(min(stride, n), (), generator=generator, device=generator.device)
            )
        positions = torch.arange(start, n, stride, device=search.device)
        sampled = search.magnitudes(positions)
        return select.kth_largest(sampled, math.ceil(len(sampled) * share))[0]

    def adapt(
        self, search: Search, threshold: int
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Lowers a threshold that finds too few; of too many it takes the largest."""
        k = self.wanted(len(search))
        bits = max(1, threshold)
        indices, values = search.above(bits)
        for _ in range(LOWERINGS):
            if len(values) >= TOO_FEW * k or bits <= 1:
                break
            bits = max(1, lowered(bits))
            indices, values = search.above(bits)
        if len(values) > TOO_MANY * k:
            return select.first_largest(indices, values, k)
        return indices, values

    def wanted(self, entries: int) -> int:
        """Returns the target number of entries to send."""
        return min(entries, max(self.least, count_for(self.ratio, entries)))

    def max_count(self, shape: torch.Size) -> int:
        entries = shape.numel()
        return min(entries, math.floor(TOO_MANY * self.wanted(entries)))


def lowered(bits: int) -> int:
    """Returns the bits of 0.8 times the magnitude with the bits `bits`."""
    value = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    return int((value * LOWERED_BY).view(torch.int32))
