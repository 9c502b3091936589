"""Random words in numba. Contracts: `random_words`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels import random_words as random
from atomo.kernels.jit import jit

__all__ = ["mix", "random_words", "scramble"]

GOLDEN = np.uint64(random.GOLDEN)
FIRST, SECOND = np.uint64(random.FIRST), np.uint64(random.SECOND)
U27, U30, U31, U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
STRIDE, ONCE, TWICE = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
S5, S13, S15, S16, S17 = (np.uint32(shift) for shift in (5, 13, 15, 16, 17))
LANES = random.LANES


@jit
def scramble(x: np.uint64) -> np.uint64:
    x = np.uint64(x)
    x = (x ^ (x >> U30)) * FIRST
    x = (x ^ (x >> U27)) * SECOND
    return x ^ (x >> U31)


@jit
def mix(x: np.uint64) -> np.uint64:
    return scramble(np.uint64(x) + GOLDEN)


@jit
def random_words(key: np.uint64, words: NDArray[np.uint32]) -> None:
    low, high = np.uint32(key), np.uint32(key >> U32)
    # 32 bits throughout, of which a vector holds twice as many as of 64.
    for i in range(min(LANES, words.size)):
        x = np.uint32(np.uint32(i) * STRIDE) ^ low
        x = np.uint32((x ^ (x >> S16)) * ONCE)
        x = np.uint32(((x ^ (x >> S15)) + high) * TWICE)
        words[i] = x ^ (x >> S16)
    # From here on a word follows from that LANES before it: as many side by side are independent.
    for start in range(LANES, words.size, LANES):
        last, target = words[start - LANES : start], words[start : start + LANES]
        for i in range(target.size):
            x = last[i]
            x ^= np.uint32(x << S13)
            x ^= x >> S17
            target[i] = x ^ np.uint32(x << S5)
