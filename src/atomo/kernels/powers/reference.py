"""Stochastic rounding to powers of two as PyTorch operations. Contracts: `kernels/powers`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomo.kernels.powers import TILE
from atomo.kernels.random_words.reference import tile_words
from atomo.kernels.sign.reference import pack_signs, unpack_signs

__all__ = ["add_all_powers", "add_powers", "pack_powers"]


def pack_powers(values: Tensor, seed: int) -> tuple[Tensor, Tensor, float]:
    values = values.float()
    mantissas = tile_words(values, TILE, seed) >> 9
    magnitudes = values.view(torch.int32) & 0x7FFFFFFF
    return ((magnitudes + mantissas) >> 23).to(torch.uint8), *pack_signs(values)


def add_powers(symbols: Tensor, signs: Tensor, out: Tensor, scale: float) -> None:
    magnitudes = (symbols.to(torch.int32) << 23).view(torch.float32)
    out.add_(torch.where(unpack_signs(signs, len(out)), -magnitudes, magnitudes), alpha=scale)


def add_all_powers(symbols: Tensor, signs: Tensor, out: Tensor, scales: Sequence[float]) -> None:
    for exponents, words, scale in zip(symbols, signs, scales, strict=True):
        add_powers(exponents, words, out, scale)
