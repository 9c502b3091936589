"""Clusters and hashed buckets as PyTorch operations. Contracts: `kernels/clusters`."""

import torch
from torch import Tensor

from atomo.kernels.clusters import MASK, ROW, TILE

__all__ = ["add_means", "assign", "mean_of_buckets"]

STRIDE, FACTOR = 0x9E3779B9, 0x7FEB352D


def assign(values: Tensor, thresholds: Tensor) -> Tensor:
    ids = torch.bucketize(values, thresholds, right=True)
    whole = len(ids) // TILE * TILE
    last = torch.nn.functional.pad(ids[whole:], (0, (len(ids) - whole) % 2))
    parts = [ids[:whole].view(-1, 2, ROW), last.view(1, 2, -1)]
    return torch.cat([(part[:, 0] | part[:, 1] << 4).flatten() for part in parts]).to(torch.uint8)


def buckets_of(packed: Tensor, sizes: Tensor, seed: int, entries: int) -> Tensor:
    whole = entries // TILE * ROW
    parts = [packed[:whole].view(-1, ROW), packed[whole:].view(1, -1)]
    ids = torch.cat([torch.stack([part & 15, part >> 4], 1).flatten() for part in parts])
    ids = ids[:entries].long()
    # 32-bit words in int64, cut back after each product.
    x = torch.arange(entries, device=packed.device) * STRIDE & MASK ^ seed & MASK
    x = (x ^ x >> 16) * FACTOR & MASK
    x = x ^ x >> 15
    return (sizes.cumsum(0) - sizes)[ids] + (x * sizes[ids] >> 32)


def mean_of_buckets(values: Tensor, packed: Tensor, sizes: Tensor, seed: int) -> Tensor:
    total = int(sizes.sum())
    buckets = buckets_of(packed, sizes, seed, len(values))
    # In double precision, as the order in which a device adds is its own.
    sums = torch.zeros(total, dtype=torch.float64, device=values.device)
    sums.index_add_(0, buckets, values.double())
    return (sums / torch.bincount(buckets, minlength=total).clamp_min(1)).float()


def add_means(
    packed: Tensor, sizes: Tensor, seed: int, means: Tensor, out: Tensor, scale: float
) -> None:
    buckets = buckets_of(packed, sizes, seed, len(out))
    out.add_(means[buckets], alpha=scale)
