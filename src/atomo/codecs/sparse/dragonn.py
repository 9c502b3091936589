"""DRAGONN: large entries hashed into a small table, which keeps most entries.

Entries above a threshold, determined from a sample, go into a table of 4 k slots by a hash of their
index. Of all entries in a slot one survives: of k entries 4 k (1 - (1 - 1 / 4k)^k), or 88.5 %.

Law: contraction. Bits: those of `topk` at about the same ratio, 64 entries a layer at least.

Wang et al., "DRAGONN: Distributed Randomized Approximate Gradients of Neural Networks", ICML 2022.
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
from atomo.codecs.seeds import draw_seed
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.payload import count_for
from atomo.codecs.sparse.search import Search
from atomo.codecs.sparse.selector import SCOPES, Selector
from atomo.core.devices import to_device
from atomo.errors import ConfigError
from atomo.kernels import draws
from atomo.kernels import selection as select

__all__ = ["Dragonn"]

SAMPLED: Final = 0.01  # of the entries
FEWEST: Final = 128  # samples; with fewer a single sample would decide
SLOTS: Final = 4  # for each of the k entries
SMALL, SMALL_RATIO = 131072, 0.01


@final
@dataclass(frozen=True)
class Dragonn(Selector):
    """About 88.5 % of the entries above a sampled threshold; the rest waits in the memory.

    The threshold is not adapted, so that more or fewer entries may be above it; the table of 4 k
    slots bounds the number of sent entries. The seed of each step decides the winner of a
    collision. Unlike the original, survivors leave in the order of their indices, which makes these
    cheap to send.

    Raises:
        ConfigError: a setting is out of range.
    """

    ratio: float = 0.01
    """The target share k / n of the entries; gradients of up to 131072 entries have
    0.01. Lower => more compression."""
    threshold: int = 0
    """Gradients of no more entries than this are sent whole, all but their zeros."""
    scope: str = "layer"
    """The group of entries for both settings: "layer", as published, or "bucket", joined layers in
    which layers with larger entries get a larger share."""
    least: int = 64
    """The fewest entries that are aimed at; 1, as published, lets small layers wait for so long
    that a run of few workers diverges."""
    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the values."""

    id: ClassVar[str] = "dragonn"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        if self.threshold < 0:
            raise ConfigError(f"dragonn: threshold must be 0 or more, got {self.threshold}")
        check_known(self.id, "scope", self.scope, SCOPES)
        if self.least < 1:
            raise ConfigError(f"dragonn: least must be 1 or more, got {self.least}")

    @property
    def granularity(self) -> Granularity:
        return SCOPES[self.scope]

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        whole = len(search) <= self.threshold
        low = 1 if whole else self.sampled_threshold(search, generator)
        indices, values = search.above(low)
        if whole:
            return indices, values
        chosen = draws.survivors(indices, draw_seed(generator), self.slots(len(search)))
        chosen = chosen.nonzero().squeeze(1)
        return indices[chosen], values[chosen]

    def sampled_threshold(self, search: Search, generator: torch.Generator) -> int:
        """Bits that about k magnitudes are not below: one sample from each equal stretch."""
        # Stretches rather than places drawn from everywhere: layers of large and of small entries
        # then have their share of the sample, which makes the threshold less noisy.
        n = len(search)
        samples = min(n, max(FEWEST, math.ceil(SAMPLED * n)))
        ends = torch.arange(samples + 1, dtype=torch.float64, device=search.device)
        starts = ends.mul_(n / samples).long().clamp_(max=n)
        width = starts[1:] - starts[:-1]
        drawn = torch.rand(samples, generator=generator, device=generator.device)
        within = (to_device(drawn, width.device) * width).long().minimum(width - 1)
        positions = starts[:-1] + within
        sampled = search.magnitudes(positions)
        above = math.ceil(samples * max(self.share(n), self.wanted(n) / n))
        return max(1, select.kth_largest(sampled, above)[0])

    def share(self, entries: int) -> float:
        """Returns the ratio for a number of entries."""
        return SMALL_RATIO if entries <= SMALL else self.ratio

    def wanted(self, entries: int) -> int:
        """Returns the target number of entries to send."""
        return min(entries, max(self.least, count_for(self.share(entries), entries)))

    def slots(self, entries: int) -> int:
        """Returns the size of the hash table."""
        return SLOTS * self.wanted(entries)

    def max_count(self, shape: torch.Size) -> int:
        entries = shape.numel()
        return entries if entries <= self.threshold else min(entries, self.slots(entries))
