"""Golomb-Rice codes of the gaps between sorted indices. Contracts and format: `kernels/rice`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atomo.kernels.jit import jit, trailing_zeros

__all__ = ["decode_all", "pack"]

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 512  # gaps that share a parameter
ESCAPE = 24  # zeros; from here on the gap itself follows
WIDE = 48  # bits of such a gap
ONE = np.uint64(1)


def pack(indices: torch.Tensor, room: int) -> torch.Tensor:
    words = np.zeros(room // 8 + 2, np.uint64)
    bits = encode(indices.numpy(), words)
    return torch.from_numpy(words.view(np.uint8)[: (bits + 7) // 8].copy())


@jit
def cost(gaps: Indices, r: int) -> int:
    """Returns the bits that gaps take with parameter r."""
    bits = 0
    for i in range(gaps.size):
        quotient = gaps[i] >> r
        bits += quotient + 1 + r if quotient < ESCAPE else ESCAPE + 1 + WIDE
    return bits


@jit
def parameter(gaps: Indices) -> int:
    """Returns the parameter of least cost near the logarithm of the mean."""
    mean = gaps.sum() // gaps.size
    near = 0
    while mean >> (near + 1):
        near += 1
    near = min(near, 31)
    # For geometric gaps log2(mean ln 2) is best, and for clusters, as in real gradients, less: so
    # the neighbours are tried, more of those below.
    best, lowest = near, cost(gaps, near)
    for r in range(max(near - 2, 0), min(near + 2, 32)):
        bits = cost(gaps, r)
        if bits < lowest:
            best, lowest = r, bits
    return best


@jit
def put(words: Words, at: int, value: np.uint64, bits: int) -> int:
    """Writes the low `bits` (at most 57) of `value` at bit `at` of zeroed words."""
    word, shift = at >> 6, np.uint64(at & 63)
    words[word] |= value << shift
    # In two steps: where nothing is left over, one of 64 places would be undefined.
    words[word + 1] |= (value >> ONE) >> (np.uint64(63) - shift)
    return at + bits


@jit
def encode(indices: Indices, words: Words) -> int:
    """Fills zeroed words; returns the bits used."""
    gaps = np.empty(BLOCK, np.int64)
    at, last = 0, -1
    for start in range(0, indices.size, BLOCK):
        count = min(BLOCK, indices.size - start)
        for i in range(count):
            gaps[i] = indices[start + i] - last - 1
            last = indices[start + i]
        r = parameter(gaps[:count])
        at = put(words, at, np.uint64(r), 5)
        mask = (1 << r) - 1
        for i in range(count):
            quotient = gaps[i] >> r
            if quotient < ESCAPE:
                # At most 23 zeros, a one and 31 bits: 55, which `put` takes in one go.
                code = (np.uint64((gaps[i] & mask) << 1) | ONE) << np.uint64(quotient)
                at = put(words, at, code, quotient + 1 + r)
            else:
                at = put(words, at, ONE << np.uint64(ESCAPE), ESCAPE + 1)
                at = put(words, at, np.uint64(gaps[i]), WIDE)
    return at


@jit
def peek(words: Words, at: int) -> np.uint64:
    """Returns the 64 bits from bit `at` on."""
    word, shift = at >> 6, np.uint64(at & 63)
    high = (words[word + 1] << ONE) << (np.uint64(63) - shift)
    return np.uint64((words[word] >> shift) | high)


@jit
def decode_all(
    words: Words, sizes: Indices, counts: Indices, firsts: Indices, ends: Indices, out: Indices
) -> int:
    """Fills `out` from sets one after the other, of so many bytes and indices each.

    Returns:
        The number of the first set whose indices do not increase from `firsts` on and below `ends`,
        or -1.
    """
    start, done = 0, 0
    for number in range(sizes.size):
        stop, indices = start + 8 * sizes[number], out[done : done + counts[number]]
        used = decode(words, start, stop, firsts[number], ends[number], indices) - start
        if used < 0 or (used + 7) // 8 != sizes[number]:
            return number
        start, done = stop, done + counts[number]
    return -1


@jit
def decode(words: Words, at: int, bits: int, first: int, end: int, indices: Indices) -> int:
    """Fills `indices`, from `first` on, from bit `at` of words, with two more words after the last
    bit.

    Returns:
        The bit after the last used bit, or -1 if the words end early or an index is out of bounds.
    """
    last, gap = first - 1, 0
    for start in range(0, indices.size, BLOCK):
        r = int(peek(words, at) & np.uint64(31))
        at += 5
        mask = (1 << r) - 1
        for i in range(start, min(start + BLOCK, indices.size)):
            if at >= bits:
                return -1
            code = peek(words, at)  # no further than the two words after the last bit
            quotient = trailing_zeros(code)
            if quotient > ESCAPE:
                return -1
            if quotient < ESCAPE:
                gap = int((code >> np.uint64(quotient)) >> ONE) & mask
                gap |= quotient << r
                at += quotient + 1 + r
            else:
                at += ESCAPE + 1
                if at >= bits:
                    return -1
                gap = int(peek(words, at) & ((ONE << np.uint64(WIDE)) - ONE))
                at += WIDE
            # Looked at after each addition: of numbers up to 2^48 no sum leaves 64 bits.
            last += gap + 1
            if last >= end:
                return -1
            indices[i] = last
    return at if at <= bits else -1
