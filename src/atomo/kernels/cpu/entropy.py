"""What is counted and rearranged around the Huffman coder. Contracts: `kernels/entropy`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = ["ZEROS", "gaps_to_trits", "histogram", "present", "trits_to_gaps"]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
SYMBOLS = 256
ZEROS = 121  # five trits, all 0
LONGEST_GAP = 126
FAR = 2 * LONGEST_GAP


@jit
def histogram(symbols: Bytes, block: int, stride: int) -> Counts:
    """How often each byte occurs in the first `block` of every `stride` bytes."""
    counts = np.zeros((4, SYMBOLS), np.int64)
    start = 0
    while start < symbols.size:
        stop = min(start + block, symbols.size)
        whole = start + (stop - start) // 4 * 4
        # Equal neighbours would wait for each other's count; in four tables they do not.
        for i in range(start, whole, 4):
            counts[0, symbols[i]] += 1
            counts[1, symbols[i + 1]] += 1
            counts[2, symbols[i + 2]] += 1
            counts[3, symbols[i + 3]] += 1
        for i in range(whole, stop):
            counts[0, symbols[i]] += 1
        start += stride
    total: Counts = counts.sum(axis=0)
    return total


@jit
def present(symbols: Bytes) -> Counts:
    """1 for each byte that occurs, else 0."""
    pairs = np.zeros(SYMBOLS * SYMBOLS, np.bool_)  # half as many writes as there are bytes
    for i in range(0, symbols.size - 1, 2):
        at = np.uint64(i)
        pair = np.uint64(symbols[at]) | np.uint64(symbols[at + np.uint64(1)]) << np.uint64(8)
        pairs[pair] = True
    seen = np.zeros(SYMBOLS, np.int64)
    for both in np.nonzero(pairs)[0]:
        seen[both & 255] = seen[both >> 8] = 1
    if symbols.size % 2:
        seen[symbols[-1]] = 1
    return seen


@jit
def trits_to_gaps(symbols: Bytes) -> Bytes:
    """Bytes of five trits, nearly all of them 0, to one byte for each trit that is not.

    Byte 2 g + b is the trit 1 - 2 b behind g zeros, and FAR stands for LONGEST_GAP zeros.

    Returns:
        The gaps; none at all where a byte is no five trits.
    """
    gaps = np.empty(5 * symbols.size, np.uint8)
    made, gap = 0, 0
    for i in range(symbols.size):
        rest = np.int64(symbols[i])
        if rest == ZEROS:
            gap += 5
        elif rest > 2 * ZEROS:
            return gaps[:0]
        else:
            for _ in range(5):
                above = rest * 171 >> 9
                trit = rest - 3 * above
                rest = above
                if trit == 1:
                    gap += 1
                else:
                    while gap >= LONGEST_GAP:
                        gaps[made] = FAR
                        made += 1
                        gap -= LONGEST_GAP
                    gaps[made] = 2 * gap + (trit == 0)
                    made += 1
                    gap = 0
    return gaps[:made]


@jit
def gaps_to_trits(gaps: Bytes, symbols: Bytes) -> bool:
    """The inverse of `trits_to_gaps`. Returns whether all gaps fit."""
    symbols[:] = ZEROS
    place = 0
    powers = np.array([1, 3, 9, 27, 81])
    for i in range(gaps.size):
        if gaps[i] >= FAR:
            place += LONGEST_GAP
        else:
            place += gaps[i] >> 1
            byte = place // 5
            if byte >= symbols.size:
                return False
            change = powers[place - 5 * byte]
            symbols[byte] += np.uint8(-change if gaps[i] & 1 else change)
            place += 1
    return True
