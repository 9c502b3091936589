"""Entries by cluster, and the means of hashed buckets: what both backends promise.

Up to 16 clusters, of which a byte holds two: entries are split into tiles of two rows of 512 (a
last tile has shorter rows), and byte j of a tile holds the clusters of entry j of the first row, in
its low bits, and of the second. Each cluster has buckets of its own, and hash(index) says which.
"""

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from atomo.kernels.cpu import clusters as cpu
from atomo.kernels.device import clusters as device

__all__ = ["MOST", "add_means", "assign", "mean_of_buckets", "symbol_count"]

MOST: Final = 16  # clusters
MASK: Final = 2**32 - 1


def symbol_count(entries: int) -> int:
    """How many bytes hold the clusters of so many entries."""
    tiles, rest = divmod(entries, cpu.TILE)
    return tiles * cpu.ROW + (rest + 1) // 2


def assign(
    values: Float[Tensor, " n"], thresholds: Float[Tensor, " t"]
) -> UInt8[Tensor, " symbols"]:
    """The clusters, packed: of each entry the number of thresholds that it is not below.

    Args:
        values: contiguous.
        thresholds: increasing, fewer than 16.
    """
    if values.device.type != "cpu":
        return device.assign(values, thresholds)
    packed = torch.empty(symbol_count(len(values)), dtype=torch.uint8)
    cpu.assign(values.numpy(), thresholds.numpy(), packed.numpy())
    return packed


def mean_of_buckets(
    values: Float[Tensor, " n"],
    packed: UInt8[Tensor, " symbols"],
    sizes: Int64[Tensor, " 16"],
    seed: int,
) -> Float[Tensor, " buckets"]:
    """The mean of each bucket, 0 where it is empty; not finite where one of its entries is not.

    Args:
        values: contiguous.
        packed: their clusters, from `assign`.
        sizes: how many buckets each cluster has, at least 1.
        seed: of the hash.
    """
    if values.device.type != "cpu":
        return device.mean_of_buckets(values, packed, sizes, seed & MASK)
    means = torch.empty(int(sizes.sum()))
    key = np.uint32(seed & MASK)
    cpu.mean_of_buckets(values.numpy(), packed.numpy(), sizes.numpy(), key, means.numpy())
    return means


def add_means(
    packed: UInt8[Tensor, " symbols"],
    sizes: Int64[Tensor, " clusters"],
    seed: int,
    means: Float[Tensor, " buckets"],
    out: Float[Tensor, " n"],
    scale: float,
) -> None:
    """Adds `scale` times the mean of its bucket to each entry, in place.

    Raises:
        ValueError: these are not what the functions above make for so many entries; `out` is
            unchanged.
    """
    if len(packed) != symbol_count(len(out)) or len(sizes) != MOST or bool((sizes < 1).any()):
        raise ValueError(f"{len(packed)} bytes of clusters and buckets {sizes.tolist()[:MOST]}")
    if bool((sizes > len(means)).any()) or int(sizes.sum()) != len(means):
        raise ValueError(f"{len(means)} means for buckets {sizes.tolist()}")
    if out.device.type != "cpu":
        device.add_means(packed, sizes, seed & MASK, means, scale, out)
        return
    held = means.clone() if means.data_ptr() % 4 else means  # a frame's bytes may start anywhere
    key = np.uint32(seed & MASK)
    setting = sizes.numpy(), key, held.numpy(), np.float32(scale)
    cpu.add_means(packed.numpy(), *setting, out.numpy())
