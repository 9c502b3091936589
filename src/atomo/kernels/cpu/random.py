"""Random bits as a function of a key and a place, so that nothing random is state."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = ["mix", "random_words"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
STRIDE, FIRST, SECOND = np.uint32(0x9E3779B9), np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
U5, U13, U15, U16, U17 = (np.uint32(shift) for shift in (5, 13, 15, 16, 17))
LANES = 128


@jit
def mix(x: np.uint64) -> np.uint64:
    """One step of splitmix64."""
    x = np.uint64(x) + GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def random_words(key: np.uint64, words: NDArray[np.uint32]) -> None:
    """Fills `words` with random bits.

    The first LANES are hashed, and each of the others is Marsaglia's xorshift ("Xorshift RNGs",
    2003) of the one LANES before it, four times faster than a hash. Up to 20 words of a lane are
    uniform in pairs down to the 12th bit and in threes down to the 8th, which is what rounding
    neighbours needs; the matrix of the generator shows it.
    """
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    for i in range(min(LANES, words.size)):
        x = np.uint32(np.uint32(i) * STRIDE) ^ low
        x = np.uint32((x ^ (x >> U16)) * FIRST)
        x = np.uint32(((x ^ (x >> U15)) + high) * SECOND)
        words[i] = x ^ (x >> U16)
    for start in range(LANES, words.size, LANES):
        last, target = words[start - LANES : start], words[start : start + LANES]
        for i in range(target.size):
            x = last[i]
            x ^= np.uint32(x << U13)
            x ^= x >> U17
            target[i] = x ^ np.uint32(x << U5)
