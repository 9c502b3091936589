"""The k-th largest and the k largest magnitudes in Triton. Contracts: `kernels/radix`."""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import starts_of, take
from atomo.kernels.triton_jit import device_code

__all__ = ["choose", "kth"]

BLOCK: Final = 2048
VALUES: Final = 2048  # that a digit may have
DIGITS: Final = ((20, 2048), (9, 2048), (0, 512))  # their shifts, and their own numbers of values
PROGRAMS: Final = 512  # share a histogram: a few for each processor of the largest devices
NOT_FINITE: Final = 0x7F8  # the least high digit of infinity and NaN


def kth(bits: Tensor, size: Tensor, k: int) -> Tensor:
    """Returns the bits of the k-th largest magnitude, the number of entries above it, and the
    number that are not finite.

    Args:
        bits: of float32 entries, as int32; their signs do not count.
        size: the number of entries, k or more; an int64 on the device.
        k: at least 1.
    """
    counts = bits.new_zeros(len(DIGITS), VALUES, dtype=torch.int64)
    grid = (max(1, min(-(-len(bits) // BLOCK), PROGRAMS)),)
    for number, (shift, values) in enumerate(DIGITS):
        constants = {"PASS": number, "SHIFT": shift, "OWN": values, "VALUES": VALUES}
        count_digits[grid](bits, size, counts, k, **constants, BLOCK=BLOCK)
    state = bits.new_empty(3, dtype=torch.int64)
    store_kth[(1,)](counts, k, state, VALUES=VALUES, NOT_FINITE=NOT_FINITE)
    return state


@device_code
def digits_so_far(counts, k, PASSES: tl.constexpr, VALUES: tl.constexpr):
    """Returns the digits of the k-th after some passes, and its rank among all entries with these
    digits.
    """
    prefix = tl.zeros([], tl.int32)
    rank = tl.zeros([], tl.int64) + k
    digits = tl.arange(0, VALUES)
    for number in tl.static_range(PASSES):
        bins = tl.load(counts + number * VALUES + digits)
        # The number of entries with this digit or a higher digit falls as the digit grows.
        digit = tl.maximum(tl.sum((tl.cumsum(bins, 0, reverse=True) >= rank).to(tl.int32)) - 1, 0)
        rank -= tl.sum(tl.where(digits > digit, bins, 0))
        prefix = (prefix << (9 if number == 2 else 11)) | digit
    return prefix, rank


@device_code
def count_digits(
    bits,
    size,
    counts,
    k,
    PASS: tl.constexpr,
    SHIFT: tl.constexpr,
    OWN: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entries = tl.load(size)
    prefix, _ = digits_so_far(counts, k, PASS, VALUES)
    seen = tl.zeros([OWN], tl.int32)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    while start < entries:
        magnitude = take(bits, start, entries, BLOCK) & 0x7FFFFFFF
        counted = start + tl.arange(0, BLOCK) < entries
        if PASS > 0:
            counted = counted & (magnitude // (OWN << SHIFT) == prefix)
        seen += tl.histogram((magnitude >> SHIFT) & (OWN - 1), OWN, mask=counted)
        start += tl.num_programs(0) * BLOCK
    tl.atomic_add(counts + PASS * VALUES + tl.arange(0, OWN), seen.to(tl.int64), mask=seen > 0)


@device_code
def store_kth(counts, k, state, VALUES: tl.constexpr, NOT_FINITE: tl.constexpr):
    low, rank = digits_so_far(counts, k, 3, VALUES)
    high = tl.arange(0, VALUES)
    tl.store(state, low.to(tl.int64))
    tl.store(state + 1, k - rank)
    tl.store(state + 2, tl.sum(tl.load(counts + high, mask=high >= NOT_FINITE, other=0)))


def choose(
    indices: Tensor, entries: Tensor, size: Tensor, k: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Selects the k largest of the first `size` entries, in their order; of equal entries the
    first.

    Args:
        indices: the index of each of `entries`.
        entries: float32.
        size: k or more, else the last results are undefined; an int64 on the device.
        k: at least 1.
        state: the result of `kth` for the entries.
    """
    blocks = -(-len(entries) // BLOCK)
    counts = indices.new_zeros(2, blocks)
    chosen, values = indices.new_empty(k), entries.new_empty(k)
    sizes, bits = (size, state, blocks), entries.view(torch.int32)
    count_larger[(blocks,)](bits, *sizes, counts, BLOCK=BLOCK)
    move_larger[(blocks,)](
        indices, bits, *sizes, starts_of(counts), k, chosen, values.view(torch.int32), BLOCK=BLOCK
    )
    return chosen, values


@device_code
def larger(bits, start, size, state, BLOCK: tl.constexpr):
    """Returns a block, and masks of its entries above the k-th and equal to it."""
    entries = tl.load(size)
    low = tl.load(state).to(tl.int32)
    inside = start + tl.arange(0, BLOCK) < entries
    entry = take(bits, start, entries, BLOCK)
    magnitude = entry & 0x7FFFFFFF
    return entry, (magnitude > low) & inside, (magnitude == low) & inside


@device_code
def count_larger(bits, size, state, blocks, counts, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    _, higher, equal = larger(bits, block * BLOCK, size, state, BLOCK)
    tl.store(counts + block, tl.sum(higher.to(tl.int32)).to(tl.int64))
    tl.store(counts + blocks + block, tl.sum(equal.to(tl.int32)).to(tl.int64))


@device_code
def move_larger(indices, bits, size, state, blocks, starts, k, chosen, values, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    start = block * BLOCK
    entry, higher, equal = larger(bits, start, size, state, BLOCK)
    ties = k - tl.load(state + 1)  # so many of the equal entries, the first, are among the k
    before = tl.load(starts + blocks + 1 + block)
    place = before + tl.cumsum(equal.to(tl.int64), 0) - equal.to(tl.int64)
    selected = higher | (equal & (place < ties))
    first = tl.load(starts + block) + tl.minimum(before, ties)
    rank = first + tl.cumsum(selected.to(tl.int64), 0) - 1
    selected = selected & (rank < k)
    index = tl.load(indices + start + tl.arange(0, BLOCK), mask=selected, other=0)
    tl.store(chosen + rank, index, mask=selected)
    tl.store(values + rank, entry, mask=selected)
