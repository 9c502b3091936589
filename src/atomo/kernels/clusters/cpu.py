"""Entries by cluster, and the means of hashed buckets, in numba. Contracts: `kernels/clusters`.

Byte j of a tile holds the clusters of entry j of either row, so that packing never moves an entry
between vector lanes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atomo.kernels.clusters import MASK, TILE, packed_bytes
from atomo.kernels.jit import jit

__all__ = ["add_means", "assign", "hash_tile", "mean_of_buckets", "unpack"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
STRIDE, FACTOR = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D)
U15, U16 = np.uint32(15), np.uint32(16)
ONE, S32 = np.uint64(1), np.uint64(32)


def assign(values: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    packed = torch.empty(packed_bytes(len(values)), dtype=torch.uint8)
    pack_clusters(values.numpy(), thresholds.numpy(), packed.numpy())
    return packed


def mean_of_buckets(
    values: torch.Tensor, packed: torch.Tensor, sizes: torch.Tensor, seed: int
) -> torch.Tensor:
    means, key = torch.empty(int(sizes.sum())), np.uint32(seed & MASK)
    find_means(values.numpy(), packed.numpy(), sizes.numpy(), key, means.numpy())
    return means


def add_means(
    packed: torch.Tensor,
    sizes: torch.Tensor,
    seed: int,
    means: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    key = np.uint32(seed & MASK)
    parts = packed.numpy(), sizes.numpy(), key, means.numpy()
    add_buckets(*parts, np.float32(scale), out.numpy())


@jit
def pack_clusters(values: Floats, thresholds: Floats, packed: Bytes) -> None:
    """Packs the cluster of each entry, which is the number of thresholds at or below the entry."""
    ids = np.empty(TILE, np.uint8)
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        half = (part.size + 1) // 2
        ids[:] = 0
        # Thresholds outside: the inner loop compares whole vectors with one number.
        for t in range(thresholds.size):
            threshold = thresholds[t]
            for i in range(part.size):
                ids[i] += np.uint8(1) if part[i] >= threshold else np.uint8(0)
        target, high = packed[start // 2 : start // 2 + half], ids[half:]
        for j in range(half):
            target[j] = ids[j] | high[j] << np.uint8(4)


@jit
def unpack(packed: Bytes, start: int, size: int, ids: Bytes) -> None:
    """Unpacks the clusters of a tile."""
    half = (size + 1) // 2
    part, high = packed[start // 2 : start // 2 + half], ids[half:]
    for j in range(half):
        ids[j] = part[j] & np.uint8(15)
    for j in range(half):
        high[j] = part[j] >> np.uint8(4)


@jit
def hash_tile(start: int, key: np.uint32, words: Words) -> None:
    """Hashes the entries of a tile to random bits, the same on every machine."""
    first = np.uint32(np.uint32(start) * STRIDE)
    for i in range(words.size):
        # start + i would be 64 bits wide, and half as many would fit in a vector.
        x = np.uint32(np.uint32(i) * STRIDE + first) ^ key
        x = np.uint32((x ^ (x >> U16)) * FACTOR)
        words[i] = x ^ (x >> U15)


@jit
def bucket_of(word: np.uint32, cluster: np.uint8, starts: Indices, sizes: Indices) -> np.uint64:
    """Returns the bucket that a word chooses in its cluster, numbered through all clusters."""
    # A word to a number below `size` by a product and a shift: no division (Lemire, "Fast Random
    # Integer Generation in an Interval", 2019).
    place = np.uint64(word) * np.uint64(sizes[cluster]) >> S32
    return np.uint64(starts[cluster]) + place


@jit
def find_means(
    values: Floats, packed: Bytes, sizes: Indices, key: np.uint32, means: Floats
) -> None:
    """Fills `means`, one for each bucket of each cluster; 0 for a bucket without entries."""
    starts = np.cumsum(sizes) - sizes
    totals = np.zeros(2 * means.size)  # sum and count of a bucket are adjacent
    ids, words = np.empty(TILE + 1, np.uint8), np.empty(TILE, np.uint32)
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        # Clusters and hashes of a whole tile first, in vectors; only the sums go one by one.
        unpack(packed, start, part.size, ids)
        hash_tile(start, key, words)
        for i in range(part.size):
            at = bucket_of(words[i], ids[i], starts, sizes) << ONE
            totals[at] += np.float64(part[i])
            totals[at | ONE] += 1.0
    for bucket in range(means.size):
        means[bucket] = totals[2 * bucket] / max(totals[2 * bucket + 1], 1.0)


@jit
def add_buckets(
    packed: Bytes, sizes: Indices, key: np.uint32, means: Floats, scale: np.float32, out: Floats
) -> None:
    """Adds scale times the mean of its bucket to each entry."""
    starts = np.cumsum(sizes) - sizes
    scaled = means * scale
    ids, words = np.empty(TILE + 1, np.uint8), np.empty(TILE, np.uint32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        unpack(packed, start, part.size, ids)
        hash_tile(start, key, words)
        for i in range(part.size):
            part[i] += scaled[bucket_of(words[i], ids[i], starts, sizes)]
