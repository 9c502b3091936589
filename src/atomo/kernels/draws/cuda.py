"""Entries chosen by a hash, in Triton. Contracts: `kernels/draws`."""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.draws import ROUNDS
from atomo.kernels.random_words.cuda import mix, scramble
from atomo.kernels.triton_jit import device_code

__all__ = ["draw", "survivors"]

BLOCK: Final = 1024


def survivors(indices: Tensor, seed: int, slots: int) -> Tensor:
    winners = torch.empty_like(indices, dtype=torch.bool)
    table = indices.new_zeros(slots, dtype=torch.int32)  # 0 is an empty slot
    grid = (-(-len(indices) // BLOCK),)
    if len(indices):
        claim[grid](indices, len(indices), seed, slots, table, BLOCK=BLOCK)
        keep[grid](indices, len(indices), seed, slots, table, winners, BLOCK=BLOCK)
    return winners


def draw(seed: int, k: int, entries: int, device: torch.device) -> Tensor:
    indices = torch.empty(k, dtype=torch.int64, device=device)
    bits = (entries - 1).bit_length()
    sizes = k, seed, entries, (1 << bits) - 1, max(1, bits // 2)
    if k:
        permute[(-(-k // BLOCK),)](indices, *sizes, ROUNDS=ROUNDS, BLOCK=BLOCK)
    return indices


@device_code
def word_of(seed, number: tl.constexpr):
    """Computes a word of the permutation."""
    place = number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return mix(tl.zeros([], tl.uint64) + seed + place) >> 2


@device_code
def permute(indices, k, seed, entries, mask, half, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < k
    zero = tl.zeros([], tl.uint64)
    x, outside = place.to(tl.uint64), inside
    # Repeated until it is below `entries`: the host needs no count of the others.
    while tl.max(outside.to(tl.int32)) > 0:
        y = x
        for number in tl.static_range(ROUNDS):
            factor = word_of(seed, ROUNDS + number) | 1
            y = ((y ^ (word_of(seed, number) & (zero + mask))) * factor) & (zero + mask)
            y = y ^ (y >> (zero + half))
        y = y ^ (word_of(seed, 2 * ROUNDS) & (zero + mask))
        x = tl.where(outside, y, x)
        outside = outside & (x >= zero + entries)
    tl.store(indices + place, x.to(tl.int64), mask=inside)


@device_code
def slots_of(indices, count, seed, slots, BLOCK: tl.constexpr):
    """Stores the slot that each index claims, and the place of each index counted from 1."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    index = tl.load(indices + place, mask=inside, other=0)
    hashed = scramble(index.to(tl.uint64) + (tl.zeros([BLOCK], tl.uint64) + seed)) >> 32
    slot = (hashed * (tl.zeros([BLOCK], tl.uint64) + slots)) >> 32
    return slot.to(tl.int64), (place + 1).to(tl.int32), inside


@device_code
def claim(indices, count, seed, slots, table, BLOCK: tl.constexpr):
    slot, number, inside = slots_of(indices, count, seed, slots, BLOCK)
    # The last claim wins, in any order of the programs.
    tl.atomic_max(table + slot, number, mask=inside)


@device_code
def keep(indices, count, seed, slots, table, winners, BLOCK: tl.constexpr):
    slot, number, inside = slots_of(indices, count, seed, slots, BLOCK)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(winners + place, tl.load(table + slot, mask=inside, other=0) == number, mask=inside)
