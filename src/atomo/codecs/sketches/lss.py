"""LSS (CASQ): entries in clusters of like size, means of hashed buckets, entropy-coded clusters.

Ge et al., "CASQ: Accelerate Distributed Deep Learning with Sketch-based Gradient Quantization",
CLUSTER 2021.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final, final

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64, UInt8
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import add_flat, draw_seed, flat
from atomo.errors import CodecError, ConfigError
from atomo.kernels import clusters, entropy

__all__ = ["LSS", "SIDES", "Clusters", "centres", "sample", "share_buckets", "train"]

SAMPLED: Final = 100_000
RUN: Final = 16  # sampled entries that lie together: a line of the cache
OUTLIERS: Final = 0.95  # quantile of the magnitudes of a sign
SIDES: Final = clusters.MOST // 2
PASSES: Final = 20  # of Lloyd's algorithm; more => closer to a local optimum
BINS: Final = 64  # of the histogram whose entropy a cluster has
SIZES: Final = ("entropy", "centre", "density")


@dataclass(frozen=True)
class Means:
    """A cluster for each entry, and a mean for each bucket of a cluster."""

    seed: Int64[Tensor, " seeds"]
    """Of the hash."""
    sizes: Int32[Tensor, " clusters"]
    """Buckets of each cluster, at least 1."""
    words: Int32[Tensor, " words"]
    """What `kernels.entropy.compress` made of the clusters, two to a byte."""
    means: Float[Tensor, " buckets"]


@dataclass(frozen=True)
class Clusters:
    """A trained model: 8 clusters of negative entries, then 8 of positive ones, by value."""

    thresholds: Float[Tensor, " 15"]
    """Between them; infinite around clusters that are not used."""
    entropies: Float[Tensor, " 16"]
    """Of a histogram of what lies in the cluster, bits."""
    centres: Float[Tensor, " 16"]
    shares: Float[Tensor, " 16"]
    """Of all entries."""


@final
@dataclass(frozen=True)
class LSS(Codec[Means]):
    """Sends which cluster an entry is in, and the mean of its bucket stands for it.

    What is decoded is the projection onto all vectors that are constant on every bucket, and no
    bucket mixes signs: so the sum of each bucket is kept, and the error is below the gradient.

    The paper trains a model every ten steps, which all workers must then agree on. Here it is
    trained on a sample at each step, in a fraction of the time that the entries take, and whatever
    decoding needs of it travels in the frame: sixteen numbers. There is nothing to agree on.

    Raises:
        ConfigError: a setting is out of range.
    """

    clusters: int = 8
    """For each sign, one of them of outliers. Higher => less error, more bytes."""
    buckets: int = 4096
    """Over all clusters. Higher => less error, more bytes."""
    share: str = "centre"
    """What buckets are shared by: "entropy" of a cluster, times its "centre", times its
    "density" as well."""

    id: ClassVar[str] = "lss"
    payload: ClassVar[type[Means]] = Means
    unit: ClassVar[Unit] = Unit.ENTRIES

    def __post_init__(self) -> None:
        if not 2 <= self.clusters <= SIDES:
            raise ConfigError(f"lss: clusters must be in 2..{SIDES}, got {self.clusters}")
        if not 1 <= self.buckets <= 2**24:
            raise ConfigError(f"lss: buckets must be in 1..{2**24}, got {self.buckets}")
        if self.share not in SIZES:
            raise ConfigError(f"lss: share must be one of {', '.join(SIZES)}; got {self.share!r}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Means:
        return self.of(flat(gradient, self.id), generator)[0]

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Means:
        if not kept.is_contiguous():
            return super().encode_residual(gradient, kept, generator)
        entries = flat(kept.add_(gradient), self.id)
        payload, packed = self.of(entries, generator)
        sizes, seed = payload.sizes.long(), int(payload.seed)
        clusters.add_means(packed, sizes, seed, payload.means, entries, -1.0)
        return payload

    def of(
        self, values: Float[Tensor, " n"], generator: Generator
    ) -> tuple[Means, UInt8[Tensor, " symbols"]]:
        """The payload, and the clusters before they were coded."""
        seed = draw_seed(generator)
        model = train(sample(values, generator), self.clusters, generator)
        sizes = share_buckets(model, min(self.buckets, len(values)), self.share)
        packed = clusters.assign(values, model.thresholds)
        means = clusters.mean_of_buckets(values, packed, sizes, seed)
        if not means.isfinite().all():
            raise CodecError("lss: the gradient holds NaN or infinity")
        words = entropy.compress(packed)
        return Means(torch.tensor([seed]), sizes.int(), words, means), packed

    def fields(self, shape: Size) -> tuple[Field, ...]:
        entries = shape.numel()
        words = clusters.symbol_count(entries) // 4 + 1 + entropy.OVERHEAD
        buckets = min(self.buckets, entries) + clusters.MOST
        return (
            Field(torch.int64, (1,)),
            Field(torch.int32, (clusters.MOST,)),
            Field(torch.int32, (words,)),
            Field(torch.float32, (buckets,)),
        )

    def add_decoded(self, payload: Means, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        def add(entries: Float[Tensor, " n"]) -> None:
            if len(payload.seed) != 1:
                raise ValueError(f"{len(payload.seed)} seeds; one is expected")
            packed = entropy.decompress(payload.words, clusters.symbol_count(len(entries)))
            sizes = payload.sizes.cpu().long()
            seed = int(payload.seed)
            clusters.add_means(
                packed.to(entries.device), sizes, seed, payload.means, entries, scale
            )

        add_flat(out, self.id, add)


def sample(values: Float[Tensor, " n"], generator: Generator) -> Float[Tensor, " s"]:
    """Some entries, on the CPU: runs that start at random, or all of a short gradient."""
    if len(values) <= SAMPLED:
        return values.cpu()
    starts = torch.randint(
        len(values) - RUN, (SAMPLED // RUN, 1), generator=generator, device=generator.device
    )
    places = (starts + torch.arange(RUN, device=starts.device)).view(-1)
    return values[places.to(values.device)].cpu()


def train(sampled: Float[Tensor, " s"], count: int, generator: Generator) -> Clusters:
    """The clusters of a sample, `count` for each sign."""
    finite = torch.from_numpy(np.sort(sampled[sampled.isfinite()].numpy()))  # faster than torch's
    draws = Generator().manual_seed(draw_seed(generator))  # the sample is always on the CPU
    below, above = (int(torch.searchsorted(finite, 0.0, right=r)) for r in (False, True))
    positive = centres(finite[above:], count, draws)
    negative = centres(-finite[:below].flip(0), count, draws)
    thresholds = torch.full((clusters.MOST - 1,), math.inf)
    thresholds[:SIDES] = -math.inf
    thresholds[SIDES - 1] = 0.0
    between = (positive[1:] + positive[:-1]) / 2
    thresholds[SIDES : SIDES + len(between)] = between
    between = -((negative[1:] + negative[:-1]) / 2).flip(0)
    thresholds[SIDES - 1 - len(between) : SIDES - 1] = between
    found = torch.zeros(clusters.MOST)
    found[SIDES : SIDES + len(positive)] = positive
    found[SIDES - len(negative) : SIDES] = -negative.flip(0)
    ends = [0, *torch.searchsorted(finite, thresholds).tolist(), len(finite)]
    parts = [finite[start:stop] for start, stop in pairwise(ends)]
    shares = torch.tensor([len(part) / max(1, len(finite)) for part in parts])
    return Clusters(thresholds, torch.stack([spread(part) for part in parts]), found, shares)


def centres(
    magnitudes: Float[Tensor, " m"], count: int, generator: Generator
) -> Float[Tensor, " c"]:
    """At most `count` increasing centres of one sign: k-means++, and the mean of the outliers.

    Args:
        magnitudes: in increasing order.
        count: with the outliers.
        generator: of the CPU.
    """
    if not len(magnitudes):
        return torch.zeros(1)
    wide = magnitudes.double()
    usual = max(1, math.ceil(OUTLIERS * len(wide)))
    inner = lloyd(wide[:usual], plus_plus(wide[:usual], count - 1, generator))
    outer = wide[usual:].mean()[None] if usual < len(wide) else wide[:0]
    every: Tensor = torch.cat([inner, outer]).float()
    return every[torch.cat([every[1:] > every[:-1], torch.tensor([True])])]


def plus_plus(values: Float[Tensor, " m"], count: int, generator: Generator) -> Float[Tensor, " c"]:
    """First centres, far from each other by chance: each drawn by its squared distance."""
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


def lloyd(values: Float[Tensor, " m"], chosen: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """Centres moved to the means of what is nearest to them, until they stay.

    What is nearest to a centre on a line is a run of the ordered values, whose sum is a difference.
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


def spread(values: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """The entropy of a histogram of ordered values, bits; 0 of fewer than two."""
    if len(values) < 2 or values[0] == values[-1]:
        return torch.zeros(())
    counts = torch.histc(values, BINS, float(values[0]), float(values[-1]))
    p = counts[counts > 0] / len(values)
    return -(p * p.log2()).sum()


def share_buckets(model: Clusters, buckets: int, share: str) -> Int64[Tensor, " 16"]:
    """How many buckets each cluster gets: at least 1, and at most 16 more than `buckets` in all."""
    weights = model.entropies.double()
    if share != "entropy":
        weights = weights * model.centres.double().abs()
    if share == "density":
        weights = weights * model.shares.double()
    total = float(weights.sum())
    if not 0 < total < math.inf:
        return torch.ones(clusters.MOST, dtype=torch.int64)
    return (weights * (buckets / total)).long().clamp_min(1)
