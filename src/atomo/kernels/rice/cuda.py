"""Golomb-Rice codes of the gaps between sorted indices, in Triton. Format: `kernels/rice`.

A program has the gaps that share a parameter. A first pass chooses it and counts the bits; where
each program's begin is the sum of those before; a second writes them. Codes share words but no
bits, so that it does not matter in which order they are put there.
"""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_host
from atomo.kernels.blocks.cuda import put_bits, starts_of
from atomo.kernels.rice.cpu import BLOCK, ESCAPE, WIDE
from atomo.kernels.triton_jit import device_code

__all__ = ["pack"]

FORMAT: Final = {"BLOCK": BLOCK, "ESCAPE": ESCAPE, "WIDE": WIDE}


def pack(indices: Tensor, room: int) -> Tensor:
    blocks = -(-len(indices) // BLOCK)
    if not blocks:
        return torch.empty(0, dtype=torch.uint8)
    parameters, bits = indices.new_empty(2, blocks)
    choose_parameters[(blocks,)](indices, len(indices), parameters, bits, **FORMAT)
    starts = starts_of(bits)
    words = indices.new_zeros(room // 4 + 4, dtype=torch.int32)
    write_codes[(blocks,)](indices, len(indices), parameters, starts, words, **FORMAT)
    # All of the room, so that how much of it is used comes with it: one wait for the device.
    packed, end = to_host([words, starts[-1:]])
    return packed.view(torch.uint8)[: (int(end) + 7) // 8].clone()


@device_code
def gaps_of(indices, block, count, BLOCK: tl.constexpr):
    """Returns the gaps of a block, and a mask of the gaps that exist."""
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    index = tl.load(indices + place, mask=inside, other=0)
    before = tl.load(indices + place - 1, mask=inside & (place > 0), other=-1)
    return tl.where(inside, index - before - 1, 0), inside


@device_code
def bits_of(gap, inside, r, ESCAPE: tl.constexpr, WIDE: tl.constexpr):
    """Returns the bits of each code with parameter r."""
    quotient = gap >> r
    return tl.where(inside, tl.where(quotient < ESCAPE, quotient + 1 + r, ESCAPE + 1 + WIDE), 0)


@device_code
def choose_parameters(
    indices,
    count,
    parameters,
    bits,
    BLOCK: tl.constexpr,
    ESCAPE: tl.constexpr,
    WIDE: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    gap, inside = gaps_of(indices, block, count, BLOCK)
    mean = tl.sum(gap) // tl.sum(inside.to(tl.int64))
    near = tl.sum(((mean >> tl.arange(0, 32)) > 0).to(tl.int64))
    near = tl.maximum(near - 1, 0)
    best = near
    lowest = tl.sum(bits_of(gap, inside, near, ESCAPE, WIDE))
    for step in tl.static_range(4):  # the neighbours, in the order in which the CPU tries them
        r = near + step - 2
        tried = tl.sum(bits_of(gap, inside, tl.maximum(r, 0), ESCAPE, WIDE))
        better = (r >= 0) & (r < 32) & (tried < lowest)
        best = tl.where(better, r, best)
        lowest = tl.where(better, tried, lowest)
    tl.store(parameters + block, best)
    tl.store(bits + block, lowest + 5)


@device_code
def write_codes(
    indices,
    count,
    parameters,
    starts,
    words,
    BLOCK: tl.constexpr,
    ESCAPE: tl.constexpr,
    WIDE: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    gap, inside = gaps_of(indices, block, count, BLOCK)
    r = tl.load(parameters + block)
    widths = bits_of(gap, inside, r, ESCAPE, WIDE)
    start = tl.load(starts + block)
    at = start + 5 + tl.cumsum(widths, 0) - widths
    far = (gap >> r) >= ESCAPE
    quotient = tl.where(far, ESCAPE, gap >> r).to(tl.uint64)
    remainder = tl.where(far, 0, gap & ((tl.zeros([], tl.int64) + 1 << r) - 1)).to(tl.uint64)
    put_bits(words, at, ((remainder << 1) | 1) << quotient, inside)
    put_bits(words, at + ESCAPE + 1, gap.to(tl.uint64), inside & far)
    lane = tl.arange(0, BLOCK)
    put_bits(words, start + lane * 0, r.to(tl.uint64) + lane.to(tl.uint64) * 0, lane == 0)
