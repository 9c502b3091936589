"""Bytes of five trits to gaps and back, in Triton. Contracts: `kernels/gaps`.

Only the device knows the number of gaps: the buffer has room for the maximum, and all its entries
are FAR at first.
"""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import starts_of
from atomo.kernels.gaps import FAR, LONGEST_GAP, ZEROS
from atomo.kernels.triton_jit import device_code

__all__ = ["gaps_to_trits", "trits_to_gaps"]

BLOCK: Final = 512
FORMAT: Final = {"FAR": FAR, "LONGEST": LONGEST_GAP}


def trits_to_gaps(symbols: Tensor) -> tuple[Tensor, Tensor]:
    """Converts bytes of five trits to gaps: returns the buffer of the gaps, and their number.

    Args:
        symbols: for other bytes the result is undefined, without an error.
    """
    blocks = -(-len(symbols) // BLOCK)
    summary = symbols.new_empty(3, blocks, dtype=torch.int64)
    survey[(blocks,)](symbols, len(symbols), summary, LONGEST=LONGEST_GAP, BLOCK=BLOCK)
    counts, first, last = summary
    ends = torch.nn.functional.pad(last.cummax(0).values, (1, 0), value=-1).clamp(min=-1)
    far = (first - ends[:-1] - 1) // LONGEST_GAP  # before the first of each block
    starts = starts_of(torch.where(last < 0, 0, counts + far))
    gaps = symbols.new_full((5 * len(symbols),), FAR)
    write_gaps[(blocks,)](symbols, len(symbols), ends, starts, gaps, LONGEST=LONGEST_GAP,
                          BLOCK=BLOCK)  # fmt: skip
    return gaps, starts[-1]


@device_code
def later(a, b):
    return tl.maximum(a, b)


@device_code
def trit_of(byte, digit: tl.constexpr):
    return byte // 3**digit % 3


@device_code
def last_of(byte, place):
    """Returns the place of the last non-zero trit of a byte, or -2."""
    last = tl.zeros_like(place) - 2
    for digit in tl.static_range(5):
        last = tl.where(trit_of(byte, digit) != 1, place * 5 + digit, last)
    return last


@device_code
def bytes_of(symbols, entries, before, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Loads the bytes of a block: their places, the last non-zero trit before each, and the gaps of
    each, without those before the first of all where `before` is -2.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    byte = tl.load(symbols + place, mask=place < entries, other=121).to(tl.int32)
    begins = tl.arange(0, BLOCK) == 0
    previous_byte = tl.load(symbols + place - 1, mask=(place < entries) & (place > 0), other=121)
    ended = tl.where(begins, before, last_of(previous_byte.to(tl.int32), place - 1))
    ended = tl.associative_scan(ended, 0, later)
    made, previous = tl.zeros([BLOCK], tl.int32), ended
    for digit in tl.static_range(5):
        nonzero = trit_of(byte, digit) != 1
        gap = tl.where(previous == -2, 0, place * 5 + digit - previous - 1)
        made += tl.where(nonzero, 1 + gap // LONGEST, 0).to(tl.int32)
        previous = tl.where(nonzero, place * 5 + digit, previous)
    return byte, place, ended, made


@device_code
def survey(symbols, entries, summary, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    block, blocks = tl.program_id(0), tl.num_programs(0)
    unknown = tl.zeros([], tl.int64) - 2
    byte, place, _, made = bytes_of(symbols, entries, unknown, LONGEST, BLOCK)
    first = (place + 1) * 5
    for digit in tl.static_range(5):
        first = tl.where(trit_of(byte, 4 - digit) != 1, place * 5 + 4 - digit, first)
    tl.store(summary + block, tl.sum(made).to(tl.int64))
    first_places = tl.where(last_of(byte, place) >= 0, first, (tl.zeros([], tl.int64) + 1) << 62)
    tl.store(summary + blocks + block, tl.min(first_places))
    tl.store(summary + 2 * blocks + block, tl.max(last_of(byte, place)))


@device_code
def write_gaps(symbols, entries, ends, starts, gaps, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    before = tl.load(ends + block)
    byte, place, previous, made = bytes_of(symbols, entries, before, LONGEST, BLOCK)
    at = tl.load(starts + block) + tl.cumsum(made, 0) - made
    for digit in tl.static_range(5):
        trit = trit_of(byte, digit)
        nonzero = trit != 1
        gap = place * 5 + digit - previous - 1
        at += tl.where(nonzero, gap // LONGEST, 0)
        token = 2 * (gap % LONGEST) + (trit == 0).to(tl.int64)
        tl.store(gaps + at, token.to(tl.uint8), mask=nonzero)
        at += nonzero.to(tl.int64)
        previous = tl.where(nonzero, place * 5 + digit, previous)


def gaps_to_trits(gaps: Tensor, count: int, symbols: Tensor) -> Tensor:
    """Fills the first `count` of `symbols`. Returns 1 where there are gaps beyond these, else 0.

    Args:
        gaps: at least one.
        count: at least 1.
        symbols: whole words of 4.
    """
    symbols.fill_(ZEROS)
    blocks = -(-len(gaps) // BLOCK)
    sums = gaps.new_empty(blocks, dtype=torch.int64)
    beyond = sums.new_zeros(1)
    span[(blocks,)](gaps, len(gaps), sums, **FORMAT, BLOCK=BLOCK)
    sizes = len(gaps), count
    place_trits[(blocks,)](gaps, *sizes, starts_of(sums), symbols.view(torch.int32), beyond,
                           **FORMAT, BLOCK=BLOCK)  # fmt: skip
    return beyond[0]


@device_code
def steps_of(gaps, count, FAR: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the gaps of a block, and the trits that each stands for."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gap = tl.load(gaps + place, mask=place < count, other=255).to(tl.int32)
    step = tl.where(gap >= FAR, LONGEST, gap // 2 + 1)
    return gap, tl.where(place < count, step, 0).to(tl.int64)


@device_code
def span(gaps, count, sums, FAR: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    _, step = steps_of(gaps, count, FAR, LONGEST, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(step))


@device_code
def place_trits(
    gaps, count, size, starts, words, beyond,
    FAR: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    gap, step = steps_of(gaps, count, FAR, LONGEST, BLOCK)
    place = tl.load(starts + tl.program_id(0)) + tl.cumsum(step, 0) - 1
    byte, digit = place // 5, place % 5
    is_trit = gap < FAR
    power = tl.where(digit == 1, 3, 1)
    power = tl.where(digit == 2, 9, power)
    power = tl.where(digit == 3, 27, power)
    power = tl.where(digit == 4, 81, power)
    change = tl.where(gap % 2 == 1, -power, power) << (byte % 4 * 8).to(tl.int32)
    # From 121 on no byte leaves 0 to 242, in any order: nothing is carried between bytes.
    tl.atomic_add(words + byte // 4, change, mask=is_trit & (byte < size))
    tl.store(beyond + byte * 0, byte * 0 + 1, mask=is_trit & (byte >= size))
