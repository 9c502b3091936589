"""Stochastic rounding to powers of two, in numba. Contracts: `kernels/powers`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.powers import TILE
from atomo.kernels.random_words.cpu import mix, random_words
from atomo.kernels.sign import WIDTH
from atomo.kernels.sign.cpu import pack_signs

__all__ = ["add_all_powers", "add_powers", "pack_powers"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
U9, U23, U31 = np.uint32(9), np.uint32(23), np.uint32(31)


def pack_powers(values: Tensor, seed: int) -> tuple[Tensor, Tensor, float]:
    symbols = torch.empty(len(values), dtype=torch.uint8)
    values = values.float()
    words, largest = pack_signs(values)
    fill_powers(values.numpy().view(np.int32), np.uint64(seed), symbols.numpy())
    return symbols, words, largest


def add_powers(symbols: Tensor, signs: Tensor, out: Tensor, scale: float) -> None:
    add_signed(symbols.numpy(), signs.numpy().view(np.uint32), out.numpy(), scale)


def add_all_powers(symbols: Tensor, signs: Tensor, out: Tensor, scales: Sequence[float]) -> None:
    for exponents, words, scale in zip(symbols, signs, scales, strict=True):
        add_powers(exponents, words, out, scale)


@jit
def fill_powers(bits: Bits, seed: int, symbols: Bytes) -> None:
    words = np.empty(TILE, np.uint32)
    for tile in range((bits.size + TILE - 1) // TILE):
        part = bits[tile * TILE : (tile + 1) * TILE]
        target = symbols[tile * TILE : tile * TILE + part.size]
        random_words(mix(np.uint64(seed) ^ mix(np.uint64(tile))), words)
        for i in range(part.size):
            # 2^e (1 + m / 2^23) goes up with probability m / 2^23: that of a carry from mantissa
            # m plus 23 random bits into the exponent. No bias, and no comparison.
            magnitude = np.int32(part[i] & 0x7FFFFFFF)
            carried = np.uint32(np.uint32(magnitude) + (words[i] >> U9))
            target[i] = np.uint8(carried >> U23)


@jit
def add_signed(symbols: Bytes, words: Words, out: Floats, scale: float) -> None:
    factor = np.float32(scale)
    values = np.empty(WIDTH, np.uint32)
    numbers = values.view(np.float32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        width = (part.size + 31) // 32
        tile_words = words[start // 32 : start // 32 + width]
        codes = symbols[start : start + part.size]
        for row in range(32):
            target = part[row * width : (row + 1) * width]
            exponents = codes[row * width : (row + 1) * width]
            place = np.uint32(row)
            # Put together as bits: a power of two by exponentiation would take far longer.
            for j in range(target.size):
                sign = np.uint32(np.uint32(tile_words[j] >> place) << U31)
                values[j] = np.uint32(np.uint32(exponents[j]) << U23) | sign
            for j in range(target.size):
                target[j] += numbers[j] * factor
