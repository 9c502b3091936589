"""Bytes of five trits to gaps and back, in numba. Contracts: `kernels/gaps`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.gaps import FAR, LONGEST_GAP, ZEROS
from atomo.kernels.jit import jit

__all__ = ["gaps_to_trits", "trits_to_gaps"]

Bytes = NDArray[np.uint8]
SYMBOLS = 256
ROW = 8  # bytes in a word


@jit
def trit_tables() -> tuple[NDArray[np.uint64], Bytes, Bytes, Bytes]:
    """Builds tables over five trits: the bytes of the gaps of the non-zero trits, as one word;
    their number; the zeros before the first; and the zeros after the last.
    """
    tokens = np.zeros(SYMBOLS, np.uint64)
    counts, first = np.zeros(SYMBOLS, np.uint8), np.zeros(SYMBOLS, np.uint8)
    last = np.zeros(SYMBOLS, np.uint8)
    for byte in range(2 * ZEROS + 1):
        remaining, gap = byte, 0
        for _ in range(5):
            trit, remaining = remaining % 3, remaining // 3
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
    """Converts trits to gaps; returns none if a byte is not five trits."""
    tokens, counts, first, last = trit_tables()
    gaps = np.empty(5 * symbols.size + ROW, np.uint8)
    made, gap = 0, 0
    largest = np.uint8(0)
    for i in range(symbols.size):
        byte = symbols[i]
        largest = max(largest, byte)
        count = counts[byte]
        if gap > LONGEST_GAP - 5 and count:  # rare; else 2 gap + 1 fits in a byte
            gap += first[byte]  # which the table has counted in its token already
            while gap >= LONGEST_GAP:
                gaps[made] = FAR
                made += 1
                gap -= LONGEST_GAP
            gap -= first[byte]
        # A whole word is always written, and a part of it counts: no branch.
        word, place = tokens[byte] + np.uint64(2 * gap), np.uint64(made)
        # The gap that was open is added to the first token, which is the lowest byte of the word.
        for j in range(ROW):
            gaps[place + np.uint64(j)] = np.uint8(word >> np.uint64(8 * j) & np.uint64(255))
        made += int(count)
        gap = int(last[byte]) + (0 if count else gap)
    return gaps[: made if largest <= 2 * ZEROS else 0]


@jit
def gaps_to_trits(gaps: Bytes, symbols: Bytes) -> bool:
    """Converts gaps to trits, the inverse of `trits_to_gaps`; returns True if all gaps fit."""
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
