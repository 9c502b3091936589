"""Selection of large entries in one pass with the residual, in Triton. Contracts: the package.

The pass that adds the residual marks the selected entries, a bit an entry; a second pass reads the
bits and moves the marked entries. The k-th largest comes from three histograms of digits of the
magnitudes' bits. Counts are integers, so that their sums have no order: results are exact.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_device
from atomo.kernels.blocks.cuda import magnitudes_of, put, starts_of, take_floats
from atomo.kernels.radix.cuda import choose, kth
from atomo.kernels.selection import reference, sampled
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = [
    "above",
    "add_at",
    "add_sets",
    "by_sample",
    "chunk_sums",
    "first_largest",
    "keep_marks",
    "kth_largest",
    "largest",
    "largest_bits",
    "magnitudes",
    "marked_entries",
    "marks_for",
]

by_sample = reference.by_sample

BLOCK: Final = 2048
LANES: Final = 128
TILE: Final = 8192  # entries of a sum that one program adds to


def above(
    values: Tensor, added: Tensor | None, low: int, clear: bool = False
) -> tuple[Tensor, Tensor]:
    words, counts = marked(values, added, number(low, values))
    return marked_entries(values, words, counts, clear)


def marked_entries(
    values: Tensor, words: Tensor, counts: Tensor, clear: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns the marked entries after a check that they are finite."""
    starts = starts_of(counts[0])
    count, odd = torch.stack([starts[-1], counts[1].sum()]).tolist()  # the only wait
    if odd:
        raise ValueError("NaN or infinity")
    return moved(values, words, starts, count, clear)


def marked(values: Tensor, added: Tensor | None, low: Tensor) -> tuple[Tensor, Tensor]:
    """Marks the entries above, a bit each; counts for each block the entries above and those not
    finite, in two rows.
    """
    words, counts = marks_for(values)
    addend = values if added is None else added
    arguments = values, addend, low, words, counts, len(values)
    mark[(counts.shape[1],)](*arguments, ADD=added is not None, BLOCK=BLOCK, **EXACT)
    return words, counts


def marks_for(values: Tensor) -> tuple[Tensor, Tensor]:
    """Allocates the marks and the counts of `keep_marks`."""
    blocks = -(-len(values) // BLOCK)
    words = values.new_empty(blocks * BLOCK // 32, dtype=torch.int32)
    return words, values.new_empty(2, blocks, dtype=torch.int64)


@device_code
def mark(values, added, low, words, counts, entries, ADD: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    entry = take_floats(values, block * BLOCK, entries, BLOCK)
    if ADD:
        entry += take_floats(added, block * BLOCK, entries, BLOCK)
        put(values, block * BLOCK, entries, entry, BLOCK)
    keep_marks(entry, tl.maximum(tl.load(low), 1), words, counts, BLOCK)


@device_code
def keep_marks(entry, low, words, counts, BLOCK: tl.constexpr):
    """Stores a bit for each entry of a program's block, the number of set bits, and of entries not
    finite.
    """
    block = tl.program_id(0).to(tl.int64)
    # Entries after the end are loaded as 0, which is below `low`.
    magnitudes = magnitudes_of(entry)
    hit = (magnitudes >= low).to(tl.int32)
    rows = tl.reshape(hit, [BLOCK // 32, 32])
    # Bits of different places add up to their word without carries.
    word = tl.sum(rows << tl.arange(0, 32)[None, :], 1)
    tl.store(words + block * (BLOCK // 32) + tl.arange(0, BLOCK // 32), word)
    tl.store(counts + block, tl.sum(hit).to(tl.int64))
    odd = tl.sum((magnitudes >= 0x7F800000).to(tl.int32))
    tl.store(counts + tl.num_programs(0) + block, odd.to(tl.int64))


def moved(
    values: Tensor, words: Tensor, starts: Tensor, room: int, clear: bool
) -> tuple[Tensor, Tensor]:
    """Returns the indices and the values of the first `room` marked entries."""
    indices = starts.new_empty(room)
    chosen = values.new_empty(room, dtype=torch.float32)
    arguments = values, words, starts, room, indices, chosen
    move[(len(starts) - 1,)](*arguments, CLEAR=clear, BLOCK=BLOCK)
    return indices, chosen


@device_code
def move(values, words, starts, room, indices, chosen, CLEAR: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    first = tl.load(starts + block)
    if tl.load(starts + block + 1) > first:
        word = tl.load(words + block * (BLOCK // 32) + tl.arange(0, BLOCK // 32))
        hit = tl.reshape((word[:, None] >> tl.arange(0, 32)[None, :]) & 1, [BLOCK])
        rank = first + tl.cumsum(hit, 0) - 1
        inside = (hit == 1) & (rank < room)
        places = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(indices + rank, places, mask=inside)
        entry = tl.load(values + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(chosen + rank, entry, mask=inside)
        if CLEAR:
            tl.store(values + places, tl.zeros([BLOCK], tl.float32), mask=inside)


def largest(values: Tensor, added: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    n, device = len(values), values.device
    sample, rank = sampled.positions(n, device), sampled.rank_of(k, n)
    if rank > len(sample):  # nearly all entries
        return sampled.largest(values, added, k)
    low = kth(magnitudes(values, added, sample), number(len(sample), values), rank)
    words, counts = marked(values, added, low)
    starts = starts_of(counts[0])
    # Twice the expected number of entries above the bound.
    room = min(n, 2 * rank * (n // len(sample) + 1))
    indices, entries = moved(values, words, starts, room, False)
    size = starts[-1:].clamp(max=room)
    state = kth(entries.view(torch.int32), size, k)
    chosen, selected = choose(indices, entries, size, k, state)
    bound, count, infinite = torch.stack([low[0], starts[-1], state[2]]).tolist()  # the only wait
    if infinite:
        raise ValueError("NaN or infinity")
    if count > room or (count < k and bound > 1):
        return sampled.largest(values, None, k)
    return (chosen, selected) if count > k else (indices[:count], entries[:count])


def kth_largest(values: Tensor, k: int) -> tuple[int, int]:
    bits, higher, _ = kth(values, number(len(values), values), k).tolist()
    return bits, higher


def first_largest(indices: Tensor, entries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    size = number(len(entries), entries)
    return choose(indices, entries, size, k, kth(entries.view(torch.int32), size, k))


def number(value: int, beside: Tensor) -> Tensor:
    """Makes an integer on the device of a tensor, without the wait of a copy from the host."""
    return torch.full((), value, dtype=torch.int64, device=beside.device)


def largest_bits(values: Tensor) -> int:
    if not len(values):
        return 0
    parts = values.new_empty(-(-len(values) // BLOCK), dtype=torch.int32)
    most_of_blocks[(len(parts),)](values, parts, len(values), BLOCK=BLOCK)
    return int(parts.max())


@device_code
def most_of_blocks(values, parts, entries, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    entry = take_floats(values, block * BLOCK, entries, BLOCK)
    tl.store(parts + block, tl.max(magnitudes_of(entry)))


def magnitudes(values: Tensor, added: Tensor | None, positions: Tensor) -> Tensor:
    sizes = torch.empty_like(positions, dtype=torch.int32)
    arguments = values, values if added is None else added, positions, sizes, len(sizes)
    gather[(-(-len(sizes) // BLOCK),)](*arguments, ADD=added is not None, BLOCK=BLOCK, **EXACT)
    return sizes


@device_code
def gather(values, added, positions, sizes, count, ADD: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    position = tl.load(positions + places, mask=inside, other=0)
    entry = tl.load(values + position, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        entry += tl.load(added + position, mask=inside, other=0.0).to(tl.float32)
    tl.store(sizes + places, magnitudes_of(entry), mask=inside)


def chunk_sums(values: Tensor, added: Tensor | None, chunk: int) -> Tensor:
    sums = values.new_empty(-(-len(values) // chunk), dtype=torch.float64)
    arguments = values, values if added is None else added, sums, len(values), chunk
    sum_chunks[(len(sums),)](*arguments, ADD=added is not None, BLOCK=BLOCK, **EXACT)
    return sums


@device_code
def sum_chunks(values, added, sums, entries, chunk, ADD: tl.constexpr, BLOCK: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    stop = tl.minimum((number + 1) * chunk, entries)
    total = tl.zeros([BLOCK], tl.float64)
    start = number * chunk
    while start < stop:
        entry = take_floats(values, start, stop, BLOCK)
        if ADD:
            entry += take_floats(added, start, stop, BLOCK)
            put(values, start, stop, entry, BLOCK)
        total += tl.abs(entry).to(tl.float64)
        start += BLOCK
    tl.store(sums + number, tl.sum(total))


def add_at(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    out.index_add_(0, indices, values, alpha=scale)


def add_sets(
    out: Tensor, indices: Tensor, values: Tensor, counts: Sequence[int], scale: float
) -> None:
    if len(indices):
        ends = to_device(torch.tensor([0, *accumulate(counts)]), out.device)
        steps = max(counts).bit_length()
        constants = {"SETS": 1 << (len(counts) - 1).bit_length(), "TILE": TILE, "LANES": LANES}
        grid = (-(-len(out) // TILE),)
        sizes = len(counts), steps, len(out)
        add_tiles[grid](out, indices, values, ends, *sizes, scale, **constants, **EXACT)


@device_code
def first_not_below(indices, low, high, bound, steps):
    """Finds in several increasing runs in parallel the first place with an index of at least a
    bound.
    """
    for _ in range(steps):
        middle = (low + high) // 2
        below = (low < high) & (tl.load(indices + middle, mask=low < high, other=0) < bound)
        high = tl.where(below, high, middle)
        low = tl.where(below, middle + 1, low)
    return low


@device_code
def add_tiles(
    out,
    indices,
    values,
    ends,
    count,
    steps,
    entries,
    scale,
    SETS: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
):
    # A program has a part of the sum to itself: nothing is added atomically, and each set in turn.
    start = tl.program_id(0).to(tl.int64) * TILE
    sets, lanes = tl.arange(0, SETS), tl.arange(0, LANES)
    low = tl.load(ends + sets, mask=sets < count, other=0)
    high = tl.load(ends + sets + 1, mask=sets < count, other=0)
    first = first_not_below(indices, low, high, start, steps)
    last = first_not_below(indices, first, high, start + TILE, steps)
    for number in range(count):
        place = tl.sum(tl.where(sets == number, first, 0))
        stop = tl.sum(tl.where(sets == number, last, 0))
        while place < stop:
            inside = place + lanes < stop
            target = out + tl.load(indices + place + lanes, mask=inside, other=0)
            value = tl.load(values + place + lanes, mask=inside, other=0.0)
            entry = tl.load(target, mask=inside, other=0.0)
            tl.store(target, entry + scale * value, mask=inside)
            place += LANES
        tl.debug_barrier()  # the next set may add to entries that other threads have just written
