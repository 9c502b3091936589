"""LSS (CASQ): entries in clusters of like size, means of hashed buckets, entropy-coded clusters.

Each entry goes to the nearest centre of its sign, and among the buckets of that cluster to the
bucket that a hash of its index gives. The payload has the cluster of each entry and the mean of
each bucket; a cluster has the more buckets the larger its centre and the wider its values
(`lss_model`).

Law: contraction. The decoded vector is the projection onto all vectors that are constant on every
bucket, and no bucket mixes signs: the sum of each bucket is kept, and the error is below the
gradient. Bits: log2(2 `clusters`) an entry packed, 3.9 when coded.

Ge et al., "CASQ: Accelerate Distributed Deep Learning with Sketch-based Gradient Quantization",
CLUSTER 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int32, Int64, UInt8

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known, require_finite
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeds import draw_seed
from atomo.codecs.sketches.lss_model import SIDES, sample, share_buckets, train_clusters
from atomo.errors import ConfigError
from atomo.kernels import clusters, entropy

__all__ = ["LSS", "Means"]

SHARES: Final = ("entropy", "centre", "density")


@dataclass(frozen=True)
class Means:
    """A cluster for each entry, and a mean for each bucket of a cluster."""

    seed: Int64[torch.Tensor, " seeds"]
    """The seed of the hash."""
    sizes: Int32[torch.Tensor, " clusters"]
    """Buckets of each cluster, at least 1."""
    words: Int32[torch.Tensor, " words"]
    """The clusters, two to a byte, after `kernels.entropy.compress`."""
    means: Float[torch.Tensor, " buckets"]


@final
@dataclass(frozen=True)
class LSS(Codec[Means]):
    """Sends which cluster an entry is in, and the mean of its bucket stands for it.

    The paper trains a model every ten steps, which all workers must then agree on. Here it is
    trained on a sample at each step, in a fraction of the time that the entries take, and any
    decoding needs of it travels in the frame: sixteen numbers. There is nothing to agree on.

    Raises:
        ConfigError: a setting is out of range.
    """

    clusters: int = 8
    """Clusters for each sign, with a cluster of outliers. Higher => less error, more bytes."""
    buckets: int = 4096
    """Buckets over all clusters. Higher => less error, more bytes."""
    share: str = "centre"
    """The weight by which clusters share the buckets: the "entropy" of a cluster, or this times its
    "centre", or this times its "density" as well."""

    id: ClassVar[str] = "lss"
    default_payload_type: ClassVar[type[Means]] = Means
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.clusters <= SIDES:
            raise ConfigError(f"lss: clusters must be in 2..{SIDES}, got {self.clusters}")
        if not 1 <= self.buckets <= 2**24:
            raise ConfigError(f"lss: buckets must be in 1..{2**24}, got {self.buckets}")
        check_known(self.id, "share", self.share, SHARES)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Means:
        return self.of(flat(gradient, self.id), generator)[0]

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Means:
        if not residual.is_contiguous():
            return super().encode_residual(gradient, residual, generator)
        entries = flat(residual.add_(gradient), self.id)
        payload, packed = self.of(entries, generator)
        sizes, seed = payload.sizes.long(), int(payload.seed)
        clusters.add_means(packed, sizes, seed, payload.means, entries, -1.0)
        return payload

    def of(
        self, values: Float[torch.Tensor, " n"], generator: torch.Generator
    ) -> tuple[Means, UInt8[torch.Tensor, " symbols"]]:
        """Returns the payload, and the clusters before entropy coding."""
        seed = draw_seed(generator)
        model = train_clusters(sample(values, generator), self.clusters, generator)
        sizes = share_buckets(model, min(self.buckets, len(values)), self.share)
        packed = clusters.assign(values, model.thresholds)
        means = clusters.mean_of_buckets(values, packed, sizes, seed)
        require_finite(self.id, bool(means.isfinite().all()))
        words = entropy.compress(packed)
        return Means(torch.tensor([seed]), sizes.int(), words, means), packed

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        words = clusters.packed_bytes(entries) // 4 + 1 + entropy.OVERHEAD
        buckets = min(self.buckets, entries) + clusters.MAX_CLUSTERS
        return (
            Field(torch.int64, (1,)),
            Field(torch.int32, (clusters.MAX_CLUSTERS,)),
            Field(torch.int32, (words,)),
            Field(torch.float32, (buckets,)),
        )

    def add_decoded(
        self, payload: Means, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            if len(payload.seed) != 1:
                raise ValueError(f"{len(payload.seed)} seeds; one is expected")
            packed = entropy.decompress(payload.words, clusters.packed_bytes(len(entries)))
            sizes, seed = payload.sizes.cpu().long(), int(payload.seed)
            clusters.add_means(
                packed.to(entries.device), sizes, seed, payload.means, entries, scale
            )
