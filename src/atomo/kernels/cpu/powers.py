"""Stochastic rounding to powers of two. Contracts: `kernels/quantise`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit
from atomo.kernels.cpu.random import mix, random_words

__all__ = ["add_powers", "round_to_powers"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
SIGN_WIDTH = 64
POWERS_TILE = 32 * SIGN_WIDTH
U9, U23, U31 = np.uint32(9), np.uint32(23), np.uint32(31)


@jit
def round_to_powers(bits: Bits, seed: int, symbols: Bytes) -> None:
    """See the façade.

    A random number added to the mantissa carries into the exponent as often as rounding up should
    happen; so it does for denormals, which go to 0 or 2^-126.
    """
    words = np.empty(POWERS_TILE, np.uint32)
    for tile in range((bits.size + POWERS_TILE - 1) // POWERS_TILE):
        part = bits[tile * POWERS_TILE : (tile + 1) * POWERS_TILE]
        target = symbols[tile * POWERS_TILE : tile * POWERS_TILE + part.size]
        random_words(mix(np.uint64(seed) ^ mix(np.uint64(tile))), words)
        for i in range(part.size):
            magnitude = np.int32(part[i] & 0x7FFFFFFF)
            carried = np.uint32(np.uint32(magnitude) + (words[i] >> U9))
            target[i] = np.uint8(carried >> U23)


@jit
def add_powers(symbols: Bytes, words: Words, out: Floats, scale: float) -> None:
    """Adds scale * sign * 2^(symbol - 127); the signs lie as in `kernels/cpu/sign`."""
    factor = np.float32(scale)
    values = np.empty(SIGN_WIDTH, np.uint32)
    numbers = values.view(np.float32)
    for start in range(0, out.size, POWERS_TILE):
        part = out[start : start + POWERS_TILE]
        width = (part.size + 31) // 32
        held = words[start // 32 : start // 32 + width]
        codes = symbols[start : start + part.size]
        for row in range(32):
            target = part[row * width : (row + 1) * width]
            exponents = codes[row * width : (row + 1) * width]
            place = np.uint32(row)
            for j in range(target.size):
                sign = np.uint32(np.uint32(held[j] >> place) << U31)
                values[j] = np.uint32(np.uint32(exponents[j]) << U23) | sign
            for j in range(target.size):
                target[j] += numbers[j] * factor
