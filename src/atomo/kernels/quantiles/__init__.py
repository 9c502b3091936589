"""Quantile buckets and the MinMaxSketch of their numbers. The contract of all backends.

A float32 is represented by its upper half: its sign, its exponent and seven more bits. A table
says for each of the 65536 halves to which of 16 groups it belongs, in its upper byte, and to which
of the group's 32 buckets. Groups travel as they are, two to a byte as in `kernels.clusters`; the
number in the group goes through a sketch: each row keeps the least number of all entries that
share a cell, and an entry is read as the largest of its cells, which is never above its own.

The entries of each 8192 have cells of their own, so that all cells fit in the cache: for each
group that occurs, in turn, two rows of ceil(count * share) cells.

Jiang et al., "SketchML", SIGMOD 2018, for the sketch.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int16, Int64, UInt8, UInt32

from atomo.kernels.clusters import MASK, packed_bytes
from atomo.kernels.quantiles import cpu as loops

__all__ = [
    "HALVES",
    "MOST_SHARE",
    "SKETCH_BUCKETS",
    "WITHIN",
    "add_sketched",
    "extremes",
    "histogram",
    "most_cells",
    "sketch",
]

WITHIN: Final = loops.WITHIN
MOST_SHARE: Final = loops.MOST_SHARE
SKETCH_BUCKETS: Final = loops.GROUPS * WITHIN
HALVES: Final = 1 << 16
SAMPLED: Final = 2**19  # from so many entries on an eighth is counted as a sample
BLOCK: Final = 2**12


def extremes(values: Float[torch.Tensor, " n"]) -> tuple[int, int]:
    """Returns the upper halves of the least and the greatest magnitude; NaN is above infinity."""
    smallest, greatest = loops.extremes(values.numpy().view(np.uint32))
    return smallest >> 16, greatest >> 16


def histogram(
    values: Float[torch.Tensor, " n"],
) -> tuple[Int64[np.ndarray, " halves"], Float64[np.ndarray, " halves"]]:
    """Counts the entries by upper half, and sums them; samples an eighth of a long vector."""
    counts, sums = np.zeros(HALVES, np.int64), np.zeros(HALVES)
    block, stride = (BLOCK, 8 * BLOCK) if len(values) >= SAMPLED else (BLOCK, BLOCK)
    loops.histogram(values.numpy().view(np.uint32), block, stride, counts, sums)
    return counts, sums


def most_cells(entries: int, share: float) -> int:
    """Returns the largest number of cells that a sketch of a number of entries may have."""
    blocks = -(-entries // loops.BLOCK)
    return int(loops.ROWS * (entries * share + loops.GROUPS * blocks)) + 1


def sketch(
    values: Float[torch.Tensor, " n"],
    table: Int16[torch.Tensor, " halves"],
    share: float,
    seed: int,
    means: Float[torch.Tensor, " buckets"],
    residual: Float[torch.Tensor, " n"] | None = None,
) -> tuple[UInt8[torch.Tensor, " symbols"], UInt8[torch.Tensor, " cells"]]:
    """Builds the groups of values, and the cells of their sketch.

    Args:
        values: contiguous.
        table: 256 group + bucket, for each upper half.
        share: cells to a row for each entry, at most MOST_SHARE.
        seed: of the hashes.
        means: of the buckets.
        residual: the values that `add_sketched` would add are subtracted from it, in place; it may
            be `values`.
    """
    bits, halves = values.numpy().view(np.uint32), table.numpy().view(np.uint16)
    packed = torch.empty(packed_bytes(len(values)), dtype=torch.uint8)
    cells = torch.empty(most_cells(len(values), share), dtype=torch.uint8)
    used = loops.sketch(
        bits, halves, share, keys(seed), packed.numpy(), cells.numpy(), means.neg().numpy(),
        (values[:0] if residual is None else residual).numpy(),
    )  # fmt: skip
    return packed, cells[:used]


def add_sketched(
    packed: UInt8[torch.Tensor, " symbols"],
    cells: UInt8[torch.Tensor, " cells"],
    share: float,
    seed: int,
    means: Float[torch.Tensor, " buckets"],
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds `scale` times the mean of the bucket in the sketch to each entry, in place.

    Raises:
        ValueError: the arguments are not results of `sketch` for a vector of this size; `out` is
            unchanged.
    """
    if len(packed) != packed_bytes(len(out)) or len(means) != SKETCH_BUCKETS:
        raise ValueError(f"{len(packed)} bytes of groups and {len(means)} means")
    blocks = -(-len(out) // loops.BLOCK)
    spans, sizes = np.empty((blocks, loops.GROUPS), np.uint32), np.empty(blocks, np.int64)
    total = loops.lay_out_blocks(packed.numpy(), len(out), share, spans, sizes)
    if len(cells) != total:
        raise ValueError(f"{len(cells)} cells; {total} belong to these groups")
    scaled = (means * scale).numpy()
    loops.add_sketched(packed.numpy(), cells.numpy(), spans, sizes, keys(seed), scaled, out.numpy())


def keys(seed: int) -> UInt32[np.ndarray, " two"]:
    """Derives a hash key for each of the two rows."""
    return np.array([seed & MASK, (seed >> 32) & MASK], np.uint32)
