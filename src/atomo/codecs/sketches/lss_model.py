"""The model of `lss`: clusters of entries by value, trained on a sample of the gradient.

A gradient has few large and many small entries, so per sign the largest 5 % are one cluster,
and k-means, started by k-means++ (Arthur and Vassilvitskii, SODA 2007), finds the others. On a line
both are cheap: the entries nearest to a centre are a run of the sorted values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64

from atomo.codecs.seeds import draw_seed
from atomo.kernels import clusters

__all__ = ["SIDES", "Clusters", "centres", "sample", "share_buckets", "train_clusters"]

SAMPLED: Final = 100_000  # entries, as published
RUN: Final = 16  # adjacent sampled entries: a cache line
OUTLIERS: Final = 0.95  # quantile of the magnitudes of a sign
SIDES: Final = clusters.MAX_CLUSTERS // 2  # clusters of a sign, at most
PASSES: Final = 20  # of Lloyd's algorithm; more => closer to a local optimum
BINS: Final = 64  # of the histogram for the entropy of a cluster


@dataclass(frozen=True)
class Clusters:
    """A trained model: 8 clusters of negative and 8 of positive entries, by value."""

    thresholds: Float[torch.Tensor, " 15"]
    """The limits between clusters; infinite around unused clusters."""
    entropies: Float[torch.Tensor, " 16"]
    """The entropy of a histogram of each cluster, bits."""
    centres: Float[torch.Tensor, " 16"]
    shares: Float[torch.Tensor, " 16"]
    """The share of each cluster in all entries."""


def sample(
    values: Float[torch.Tensor, " n"], generator: torch.Generator
) -> Float[torch.Tensor, " s"]:
    """Samples entries, on the CPU: runs with random starts, or all entries of a short gradient."""
    if len(values) <= SAMPLED:
        return values.cpu()
    starts = torch.randint(
        len(values) - RUN, (SAMPLED // RUN, 1), generator=generator, device=generator.device
    )
    places = (starts + torch.arange(RUN, device=starts.device)).view(-1)
    return values[places.to(values.device)].cpu()


def train_clusters(
    sampled: Float[torch.Tensor, " s"], count: int, generator: torch.Generator
) -> Clusters:
    """Trains the clusters on a sample, `count` for each sign."""
    finite = torch.from_numpy(np.sort(sampled[sampled.isfinite()].numpy()))  # faster than torch's
    draws = torch.Generator().manual_seed(draw_seed(generator))  # the sample is always on the CPU
    # Zeros are in neither part: they belong to the positive cluster of least value.
    below, above = (int(torch.searchsorted(finite, 0.0, right=r)) for r in (False, True))
    positive = centres(finite[above:], count, draws)
    negative = centres(-finite[:below].flip(0), count, draws)
    thresholds = thresholds_between(negative, positive)
    values = torch.zeros(clusters.MAX_CLUSTERS)
    values[SIDES : SIDES + len(positive)] = positive
    values[SIDES - len(negative) : SIDES] = -negative.flip(0)
    ends = [0, *torch.searchsorted(finite, thresholds).tolist(), len(finite)]
    parts = [finite[start:stop] for start, stop in pairwise(ends)]
    shares = torch.tensor([len(part) / max(1, len(finite)) for part in parts])
    return Clusters(thresholds, torch.stack([spread(part) for part in parts]), values, shares)


def thresholds_between(
    negative: Float[torch.Tensor, " a"], positive: Float[torch.Tensor, " b"]
) -> Float[torch.Tensor, " 15"]:
    """Returns the midpoints between centres, which are given by rising magnitude, and 0 between the
    signs.

    Clusters are ordered by value, the negative clusters first. Unused clusters are outermost,
    beyond infinite thresholds.
    """
    thresholds = torch.full((clusters.MAX_CLUSTERS - 1,), math.inf)
    thresholds[:SIDES] = -math.inf
    thresholds[SIDES - 1] = 0.0
    between = (positive[1:] + positive[:-1]) / 2
    thresholds[SIDES : SIDES + len(between)] = between
    between = -((negative[1:] + negative[:-1]) / 2).flip(0)
    thresholds[SIDES - 1 - len(between) : SIDES - 1] = between
    return thresholds


def centres(
    magnitudes: Float[torch.Tensor, " m"], count: int, generator: torch.Generator
) -> Float[torch.Tensor, " c"]:
    """Finds at most `count` increasing centres of one sign: k-means++, and the mean of the
    outliers.

    Args:
        magnitudes: in increasing order.
        count: with the outliers.
        generator: of the CPU.
    """
    if not len(magnitudes):
        return torch.zeros(1)  # a sign without entries has a cluster too
    wide = magnitudes.double()
    usual = max(1, math.ceil(OUTLIERS * len(wide)))
    inner = lloyd(wide[:usual], plus_plus(wide[:usual], count - 1, generator))
    outer = wide[usual:].mean()[None] if usual < len(wide) else wide[:0]
    joined: torch.Tensor = torch.cat([inner, outer]).float()
    # Equal centres would leave a cluster that no entry is nearest to.
    return joined[torch.cat([joined[1:] > joined[:-1], torch.tensor([True])])]


def plus_plus(
    values: Float[torch.Tensor, " m"], count: int, generator: torch.Generator
) -> Float[torch.Tensor, " c"]:
    """Draws the first centres of k-means++: each with a probability proportional to its squared
    distance.
    """
    # Values far from the chosen centres are likely choices. The expected error is therefore within
    # 8 (ln c + 2) times the least error.
    first = torch.randint(len(values), (1,), generator=generator)
    chosen, distance = values[first], None
    for _ in range(count - 1):
        near = (values - chosen[-1]).square()
        distance = near if distance is None else distance.minimum(near)
        if not distance.any():
            break
        ahead = distance.cumsum(0)
        drawn = torch.rand(1, generator=generator, dtype=ahead.dtype) * ahead[-1]
        chosen = torch.cat([chosen, values[torch.searchsorted(ahead, drawn, right=True)]])
    return chosen.sort().values


def lloyd(
    values: Float[torch.Tensor, " m"], chosen: Float[torch.Tensor, " c"]
) -> Float[torch.Tensor, " c"]:
    """Moves centres to the means of their nearest values, until they stay.

    The nearest values of a centre are a run of the ordered values, and the sum of a run is a
    difference of two running sums: a pass takes a search for each centre, not a look at each value.
    """
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    for _ in range(PASSES):
        inner = torch.searchsorted(values, (chosen[1:] + chosen[:-1]) / 2)
        ends = torch.cat([torch.tensor([0]), inner, torch.tensor([len(values)])])
        counts = ends.diff()
        means = sums[ends].diff() / counts.clamp_min(1)
        moved = torch.where(counts > 0, means, chosen)
        if moved.equal(chosen):
            break
        chosen = moved
    return chosen


def spread(values: Float[torch.Tensor, " m"]) -> Float[torch.Tensor, ""]:
    """Returns the entropy of a histogram of ordered values, bits; 0 for fewer than two values."""
    if len(values) < 2 or values[0] == values[-1]:
        return torch.zeros(())
    counts = torch.histc(values, BINS, float(values[0]), float(values[-1]))
    p = counts[counts > 0] / len(values)
    return -(p * p.log2()).sum()


def share_buckets(model: Clusters, buckets: int, share: str) -> Int64[torch.Tensor, " 16"]:
    """Returns the number of buckets of each cluster: at least 1, and in all at most 16 above
    `buckets`.
    """
    weights = model.entropies.double()
    if share != "entropy":
        weights = weights * model.centres.double().abs()
    if share == "density":
        weights = weights * model.shares.double()
    total = float(weights.sum())
    if not 0 < total < math.inf:
        return torch.ones(clusters.MAX_CLUSTERS, dtype=torch.int64)
    return (weights * (buckets / total)).long().clamp_min(1)
