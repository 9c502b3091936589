"""Sampling the entries of a vector in Triton. Contracts: `kernels/atoms`.

The steps of Newton's method follow each other on the device, and the host looks at the rate after
several: it takes about five, and further steps change nothing.
"""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_host
from atomo.kernels.atoms import TILE
from atomo.kernels.atoms.reference import PASSES, add_cosines
from atomo.kernels.blocks.cuda import starts_of, take
from atomo.kernels.random_words.cuda import first_words, mix, next_words
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["add_cosines", "best_rate", "sample_entries"]

BLOCK: Final = 1024
PROGRAMS: Final = 1024  # share the sums
AT_ONCE: Final = 8  # steps between reads of the host


def best_rate(values: Tensor, budget: float) -> float:
    programs = min(-(-len(values) // BLOCK), PROGRAMS)
    parts = values.new_empty(2, programs, dtype=torch.float64)
    # The rate, the number of certain atoms, 1 once the rate is final, and the budget.
    state = torch.cat([parts.new_zeros(3), parts.new_full((1,), budget)])
    shape = {"PARTS": 1 << (programs - 1).bit_length()}
    for step in range(PASSES):
        arguments = values, len(values), state, parts
        sum_below[(programs,)](*arguments, FIRST=step == 0, BLOCK=BLOCK, **EXACT)
        advance[(1,)](state, parts, programs, FIRST=step == 0, **shape, **EXACT)
        if step % AT_ONCE == AT_ONCE - 1 or step == PASSES - 1:
            (seen,) = to_host([state])  # usually the only wait
            if seen[2]:
                break
    return float(seen[0])


@device_code
def sum_below(values, entries, state, parts, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Sums the magnitudes with |v| rate < 1, and counts all others; in the first pass sums all
    magnitudes, and counts those that are not 0.
    """
    rate = tl.load(state)
    total, count = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if tl.load(state + 2) == 0:
        while start < entries:
            size = tl.abs(take(values, start, entries, BLOCK).to(tl.float64))
            if FIRST:
                total += size
                count += (size > 0).to(tl.float64)
            else:
                certain = (size > 0) & (tl.where(size > 0, size, 1.0) * rate >= 1)
                total += tl.where(certain, 0.0, size)
                count += certain.to(tl.float64)
            start += tl.num_programs(0) * BLOCK
        tl.store(parts + tl.program_id(0), tl.sum(total))
        tl.store(parts + tl.num_programs(0) + tl.program_id(0), tl.sum(count))


@device_code
def advance(state, parts, programs, FIRST: tl.constexpr, PARTS: tl.constexpr):
    """Takes one step of Newton's method, as `cpu` explains it."""
    place = tl.arange(0, PARTS)
    total = tl.sum(tl.load(parts + place, mask=place < programs, other=0.0))
    count = tl.sum(tl.load(parts + programs + place, mask=place < programs, other=0.0))
    rate, certain, budget = tl.load(state), tl.load(state + 1), tl.load(state + 3)
    infinite = tl.zeros([], tl.float64) + float("inf")
    divisor = tl.where(total > 0, total, 1.0)
    if tl.load(state + 2) == 0:
        if FIRST:
            all_of_them = tl.where(budget >= count, 1.0, 0.0)
            done = tl.where(total < infinite, all_of_them, 1.0)  # and where it is NaN
            rate = tl.where(total < infinite, budget / divisor, float("nan"))
            rate = tl.where(all_of_them * tl.where(total < infinite, 1.0, 0.0) > 0, infinite, rate)
            tl.store(state + 1, tl.zeros([], tl.float64))
        else:
            done = tl.where(count == certain, 1.0, 0.0)
            next_rate = tl.where(total > 0, (budget - count) / divisor, infinite)
            rate = tl.where(count == certain, rate, tl.maximum(rate, next_rate))
            tl.store(state + 1, count)
        tl.store(state, rate)
        tl.store(state + 2, done.to(tl.float64))


def sample_entries(values: Tensor, rate: float, seed: int) -> Tensor:
    tiles = -(-len(values) // TILE)
    if not tiles:
        return values.new_empty(0, dtype=torch.int64)
    chance = torch.full((), rate, dtype=torch.float64, device=values.device)
    counts = values.new_empty(tiles, dtype=torch.int64)
    arguments = values, len(values), seed, chance
    draw_tiles[(tiles,)](*arguments, counts, counts, WRITE=False, TILE=TILE, **EXACT)
    starts = starts_of(counts)
    indices = starts.new_empty(int(starts[-1]))  # the only wait
    draw_tiles[(tiles,)](*arguments, starts, indices, WRITE=True, TILE=TILE, **EXACT)
    return indices


@device_code
def draw_tiles(
    values, entries, seed, chance, starts, indices, WRITE: tl.constexpr, TILE: tl.constexpr
):
    tile = tl.program_id(0).to(tl.int64)
    key = mix((tl.zeros([], tl.uint64) + seed) ^ mix(tile * TILE))
    lane, rate = tl.arange(0, 128), tl.load(chance)
    word = first_words(key + tl.zeros([128], tl.uint64), lane)
    made = tl.zeros([], tl.int64)
    if WRITE:
        made = tl.load(starts + tile)
    for step in tl.static_range(TILE // 128):
        place = step * 128 + lane
        low_bits = (mix(key + place.to(tl.uint64)) >> 11).to(tl.float64) * 1.1102230246251565e-16
        uniform = ((word >> 8).to(tl.float64) + low_bits) * 5.9604644775390625e-08
        at = tile * TILE + place
        entry = tl.load(values + at, mask=at < entries, other=0.0).to(tl.float64)
        # An entry of 0 is never drawn, nor an entry after the end, which is loaded as 0.
        size = tl.where(entry == 0, 1.0, tl.abs(entry))
        hit = (entry != 0) & (uniform < size * rate)
        if WRITE:
            rank = made + tl.cumsum(hit.to(tl.int64), 0) - 1
            tl.store(indices + rank, at, mask=hit)
        made += tl.sum(hit.to(tl.int64))
        word = next_words(word)
    if not WRITE:
        tl.store(starts + tile, made)
