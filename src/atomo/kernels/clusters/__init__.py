"""Entries by cluster, and the means of hashed buckets. The contract of all backends.

Up to 16 clusters, of which a byte holds two: entries are split into tiles of two rows of 512 (a
last tile has shorter rows), and byte j of a tile holds the clusters of entry j of the first row, in
its low bits, and of the second. Each cluster has buckets of its own, and a hash of the
index, below 2^32 with the low word of the seed as its key, gives the bucket.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Int64, UInt8

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = [
    "MASK",
    "MAX_CLUSTERS",
    "ROW",
    "TILE",
    "add_means",
    "assign",
    "backend",
    "mean_of_buckets",
    "packed_bytes",
]

MAX_CLUSTERS: Final = 16  # clusters
ROW: Final = 512
TILE: Final = 2 * ROW
MASK: Final = 2**32 - 1  # the low word of a seed

backend = backend_for(__name__, "cpu", "reference")


def packed_bytes(entries: int) -> int:
    """Returns the number of bytes that hold the clusters of a number of entries."""
    tiles, remainder = divmod(entries, TILE)
    return tiles * ROW + (remainder + 1) // 2


def assign(
    values: Float[torch.Tensor, " n"], thresholds: Float[torch.Tensor, " t"]
) -> UInt8[torch.Tensor, " symbols"]:
    """Assigns each entry its cluster, the number of thresholds at or below it, and packs the
    clusters.

    Args:
        values: contiguous.
        thresholds: increasing, fewer than 16.
    """
    return backend(values).assign(values, to_device(thresholds, values.device))


def mean_of_buckets(
    values: Float[torch.Tensor, " n"],
    packed: UInt8[torch.Tensor, " symbols"],
    sizes: Int64[torch.Tensor, " 16"],
    seed: int,
) -> Float[torch.Tensor, " buckets"]:
    """Computes the mean of each bucket: 0 for an empty bucket, not finite if an entry is not.

    Args:
        values: contiguous.
        packed: their clusters, from `assign`.
        sizes: the number of buckets of each cluster, at least 1.
        seed: of the hash.
    """
    parts = to_device(packed, values.device), to_device(sizes, values.device)
    return backend(values).mean_of_buckets(values, *parts, seed)


def add_means(
    packed: UInt8[torch.Tensor, " symbols"],
    sizes: Int64[torch.Tensor, " clusters"],
    seed: int,
    means: Float[torch.Tensor, " buckets"],
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds `scale` times the mean of its bucket to each entry, in place.

    Raises:
        ValueError: the arguments are not results of the functions above for a vector of this size;
            `out` is unchanged.
    """
    wrong = len(packed) != packed_bytes(len(out)) or len(sizes) != MAX_CLUSTERS
    if wrong or bool((sizes < 1).any()):
        buckets = sizes.tolist()[:MAX_CLUSTERS]
        raise ValueError(f"{len(packed)} bytes of clusters and buckets {buckets}")
    if bool((sizes > len(means)).any()) or int(sizes.sum()) != len(means):
        raise ValueError(f"{len(means)} means for buckets {sizes.tolist()}")
    codes, widths, averages = (to_device(part, out.device) for part in (packed, sizes, means))
    backend(out).add_means(codes, widths, seed, averages, out, scale)
