"""The k largest entries, searched above a bound from a sample. Contracts: the package.

The bound is very probably not above the k-th largest, so that one pass over all entries finds them
with few others, and only these are looked at closely.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from jaxtyping import Float, Int64

from atomo.kernels import selection as select

__all__ = ["largest", "positions", "rank_of"]

SAMPLES: Final = 65536
RUN: Final = 16  # adjacent sampled entries: a cache line
MARGIN: Final = 5.0  # standard deviations


def largest(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, k: int
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Implements `largest` of `kernels.selection` with the other functions of the backend."""
    low = lower_bound(values, added, k)
    indices, entries = select.above(values, added, low)
    if len(entries) < k and low > 1:
        bits, _ = select.kth_largest(values.float().view(torch.int32), k)
        indices, entries = select.above(values, None, max(1, bits))
    return select.first_largest(indices, entries, k) if len(entries) > k else (indices, entries)


def lower_bound(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, k: int
) -> int:
    """Bits that the k-th largest magnitude is very probably not below."""
    sample, rank = positions(len(values), values.device), rank_of(k, len(values))
    if rank > len(sample):
        return 1
    return max(1, select.kth_largest(select.magnitudes(values, added, sample), rank)[0])


def positions(entries: int, device: torch.device) -> Int64[torch.Tensor, " samples"]:
    """Returns evenly spread positions of the sample, or all positions of a short vector."""
    if entries <= 2 * SAMPLES:
        return torch.arange(entries, device=device)
    runs = SAMPLES // RUN
    starts = torch.arange(runs, device=device) * (entries - RUN) // (runs - 1)
    return (starts[:, None] + torch.arange(RUN, device=device)).view(-1)


def rank_of(k: int, entries: int) -> int:
    """Returns the rank in the sample that is the bound; fewer entries may be above."""
    if entries <= 2 * SAMPLES:
        return k
    # How many of the k largest are in the sample is nearly a Poisson number. At a rank five
    # deviations above its mean the bound is hardly ever too high, which costs another pass.
    expected = k * SAMPLES / entries
    return math.ceil(expected + MARGIN * math.sqrt(expected) + 8)
