"""Counts of each byte of a message, in numba. Contract: `kernels/entropy`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["present", "symbol_histogram"]

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
SYMBOLS = 256


@jit
def symbol_histogram(symbols: Bytes, block: int, stride: int) -> Counts:
    """Counts each byte in the first `block` of every `stride` bytes."""
    counts, total = np.zeros((4, SYMBOLS), np.int64), np.zeros(SYMBOLS, np.int64)
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
    for table in range(4):  # `counts.sum(0)` takes numba three seconds more to compile
        for symbol in range(SYMBOLS):
            total[symbol] += counts[table, symbol]
    return total


@jit
def present(symbols: Bytes) -> Counts:
    """Returns 1 for each byte that occurs, else 0."""
    pairs = np.zeros(SYMBOLS * SYMBOLS, np.bool_)  # half as many writes as there are bytes
    for i in range(0, symbols.size - 1, 2):
        at = np.uint64(i)
        pair = np.uint64(symbols[at]) | np.uint64(symbols[at + np.uint64(1)]) << np.uint64(8)
        pairs[pair] = True
    seen = np.zeros(SYMBOLS, np.int64)
    for pair_code in np.nonzero(pairs)[0]:
        seen[pair_code & 255] = seen[pair_code >> 8] = 1
    if symbols.size % 2:
        seen[symbols[-1]] = 1
    return seen
