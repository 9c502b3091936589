"""Count-sketches in Triton. Contracts: `kernels/sketch`.

Entries that share a cell are added atomically, in any order: the last bits of a sum may differ.
"""

from typing import Final

import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import put, take, take_floats
from atomo.kernels.random_words.cuda import mix
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["add_cells", "fill_cells"]

BLOCK: Final = 1024


def fill_cells(values: Tensor, seed: int, cells: Tensor) -> None:
    if len(values):
        sizes = len(values), seed, cells, len(cells)
        fill[(-(-len(values) // BLOCK),)](values, *sizes, BLOCK=BLOCK, **EXACT)


def add_cells(cells: Tensor, seed: int, out: Tensor, scale: float) -> None:
    if len(out):
        sizes = len(out), seed, cells, len(cells), scale
        add[(-(-len(out) // BLOCK),)](out, *sizes, BLOCK=BLOCK, **EXACT)


@device_code
def hashed(start, seed, size, BLOCK: tl.constexpr):
    """Hashes a block of entries to cells, and to a mask: added or subtracted."""
    zero = tl.zeros([BLOCK], tl.uint64)
    word = mix((start + tl.arange(0, BLOCK)).to(tl.uint64) + (zero + seed))
    return (((word >> 32) * (zero + size)) >> 32).to(tl.int64), (word & 1) == 1


@device_code
def fill(values, entries, seed, cells, size, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    cell, plus = hashed(start, seed, size, BLOCK)
    entry = take_floats(values, start, entries, BLOCK)
    inside = start + tl.arange(0, BLOCK) < entries
    tl.atomic_add(cells + cell, tl.where(plus, entry, -entry), mask=inside)


@device_code
def add(out, entries, seed, cells, size, scale, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    cell, plus = hashed(start, seed, size, BLOCK)
    value = tl.load(cells + cell) * scale
    entry = take(out, start, entries, BLOCK)
    put(out, start, entries, entry + tl.where(plus, value, -value), BLOCK)
