"""Entries chosen by a hash, in Triton. Contracts: `kernels/draws`."""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.draws import torch_way
from atomo.kernels.random.triton_way import scramble
from atomo.kernels.triton_jit import device_code

__all__ = ["draw", "survivors"]

BLOCK: Final = 1024
draw = torch_way.draw


def survivors(indices: Tensor, seed: int, slots: int) -> Tensor:
    kept = torch.empty_like(indices, dtype=torch.bool)
    table = indices.new_zeros(slots, dtype=torch.int32)  # 0 is an empty slot
    grid = (-(-len(indices) // BLOCK),)
    if len(indices):
        claim[grid](indices, len(indices), seed, slots, table, BLOCK=BLOCK)
        keep[grid](indices, len(indices), seed, slots, table, kept, BLOCK=BLOCK)
    return kept


@device_code
def slots_of(indices, count, seed, slots, BLOCK: tl.constexpr):
    """The slot that each index claims, and its place behind 0."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    index = tl.load(indices + place, mask=inside, other=0)
    hashed = scramble(index.to(tl.uint64) + (tl.zeros([BLOCK], tl.uint64) + seed)) >> 32
    slot = (hashed * (tl.zeros([BLOCK], tl.uint64) + slots)) >> 32
    return slot.to(tl.int64), (place + 1).to(tl.int32), inside


@device_code
def claim(indices, count, seed, slots, table, BLOCK: tl.constexpr):
    slot, number, inside = slots_of(indices, count, seed, slots, BLOCK)
    # The last one wins, whichever program comes first.
    tl.atomic_max(table + slot, number, mask=inside)


@device_code
def keep(indices, count, seed, slots, table, kept, BLOCK: tl.constexpr):
    slot, number, inside = slots_of(indices, count, seed, slots, BLOCK)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(kept + place, tl.load(table + slot, mask=inside, other=0) == number, mask=inside)
