"""What is counted and rearranged around the Huffman coder. Contracts: `kernels/entropy`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["ZEROS", "gaps_to_trits", "histogram", "present", "trits_to_gaps"]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
SYMBOLS = 256
ZEROS = 121  # five trits, all 0
LONGEST_GAP = 126
FAR = 2 * LONGEST_GAP
ROW = 8  # bytes in a word


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
def trit_tables() -> tuple[NDArray[np.uint64], Bytes, Bytes, Bytes]:
    """Of each five trits: the bytes for those that are not 0, were nothing before them, as one
    word; how many these are; the zeros before the first; and those behind the last.
    """
    tokens = np.zeros(SYMBOLS, np.uint64)
    counts, first = np.zeros(SYMBOLS, np.uint8), np.zeros(SYMBOLS, np.uint8)
    last = np.zeros(SYMBOLS, np.uint8)
    for byte in range(2 * ZEROS + 1):
        rest, gap = byte, 0
        for _ in range(5):
            trit, rest = rest % 3, rest // 3
            if trit == 1:
                gap += 1
                continue
            if counts[byte] == 0:
                first[byte] = gap
            token = np.uint64(2 * gap + (trit == 0))
            tokens[byte] |= token << np.uint64(8 * counts[byte])
            counts[byte] += 1
            gap = 0
        last[byte] = gap
    return tokens, counts, first, last


@jit
def trits_to_gaps(symbols: Bytes) -> Bytes:
    """Bytes of five trits, nearly all of them 0, to one byte for each trit that is not.

    Byte 2 g + b is the trit 1 - 2 b behind g zeros, and FAR stands for LONGEST_GAP zeros.

    Returns:
        The gaps; none at all where a byte is no five trits.
    """
    tokens, counts, first, last = trit_tables()
    gaps = np.empty(5 * symbols.size + ROW, np.uint8)
    made, gap = 0, 0
    most = np.uint8(0)
    for i in range(symbols.size):
        byte = symbols[i]
        most = max(most, byte)
        count = counts[byte]
        if gap > LONGEST_GAP - 5 and count:  # seldom; else 2 gap + 1 fits in a byte as it is
            gap += first[byte]  # which the table has counted in its token already
            while gap >= LONGEST_GAP:
                gaps[made] = FAR
                made += 1
                gap -= LONGEST_GAP
            gap -= first[byte]
        # A whole word is written, whatever part of it counts: nothing to branch on.
        word, place = tokens[byte] + np.uint64(2 * gap), np.uint64(made)
        # The gap that was open is added to the first token, which is the lowest byte of the word.
        for j in range(ROW):
            gaps[place + np.uint64(j)] = np.uint8(word >> np.uint64(8 * j) & np.uint64(255))
        made += int(count)
        gap = int(last[byte]) + (0 if count else gap)
    return gaps[: made if most <= 2 * ZEROS else 0]


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
            change = powers[place - 5 * byte]  # from the trit 1, which is a zero, to 2 or to 0
            symbols[byte] += np.uint8(-change if gaps[i] & 1 else change)
            place += 1
    return True
