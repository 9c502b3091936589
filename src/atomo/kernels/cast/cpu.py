"""Rounding to sixteen bits in numba, a tile at a time. Contracts: `kernels/cast`.

Halves are the processor's; where it has none, PyTorch's.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.cast import reference
from atomo.kernels.jit import from_half_bits, has_halves, jit, to_half_bits
from atomo.kernels.selection.cpu import add_up, most_bits

__all__ = ["add_to_brain", "add_to_half", "to_brain", "to_half"]

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Words = NDArray[np.uint32]
Shorts = NDArray[np.uint16]

TILE = 2048
LARGEST: Final = np.float32(65504)
ONE = np.uint32(1)
UPPER, SIXTEEN, BELOW_UPPER = np.uint32(0xFFFF0000), np.uint32(16), np.uint32(0x7FFF)


def to_half(values: Tensor, scale: float) -> tuple[Tensor, float]:
    if not has_halves():
        return reference.to_half(values, scale)
    out = torch.empty_like(values, dtype=torch.float16)
    shorts = out.view(torch.int16).numpy().view(np.uint16)
    return out, magnitude(fill_halves(values.float().numpy(), 1 / scale, shorts))


def add_to_half(values: Tensor, added: Tensor, scale: float) -> tuple[Tensor, float]:
    if not has_halves():
        return reference.add_to_half(values, added, scale)
    out = torch.empty_like(values, dtype=torch.float16)
    shorts = out.view(torch.int16).numpy().view(np.uint16)
    return out, magnitude(
        add_halves(values.numpy(), added.float().numpy(), scale, 1 / scale, shorts)
    )


def to_brain(values: Tensor) -> tuple[Tensor, float]:
    out = torch.empty_like(values, dtype=torch.bfloat16)
    return out, magnitude(
        fill_brains(values.float().numpy(), out.view(torch.int16).numpy().view(np.uint16))
    )


def add_to_brain(values: Tensor, added: Tensor) -> tuple[Tensor, float]:
    out = torch.empty_like(values, dtype=torch.bfloat16)
    shorts = out.view(torch.int16).numpy().view(np.uint16)
    return out, magnitude(add_brains(values.numpy(), added.float().numpy(), shorts))


def magnitude(bits: int) -> float:
    """Returns the number with these bits."""
    return float(np.array([bits], np.int32).view(np.float32)[0])


@jit
def fill_halves(values: Floats, factor: float, out: Shorts) -> np.int32:
    times, peak = np.float32(factor), np.int32(0)
    for start in range(0, values.size, TILE):
        part, target = values[start : start + TILE], out[start : start + TILE]
        peak = max(peak, most_bits(part.view(np.int32)))
        for i in range(part.size):
            target[i] = to_half_bits(min(max(part[i] * times, -LARGEST), LARGEST))
    return peak


@jit
def add_halves(values: Floats, added: Floats, scale: float, factor: float, out: Shorts) -> np.int32:
    times, unit, peak = np.float32(factor), np.float32(scale), np.int32(0)
    for start in range(0, values.size, TILE):
        part, target = values[start : start + TILE], out[start : start + TILE]
        add_up(part, added[start : start + TILE])
        peak = max(peak, most_bits(part.view(np.int32)))
        for i in range(part.size):
            half = to_half_bits(min(max(part[i] * times, -LARGEST), LARGEST))
            target[i] = half
            # Exact within the range: the error of rounding to nearest is a float32 itself.
            part[i] -= from_half_bits(half) * unit
    return peak


@jit
def fill_brains(values: Floats, out: Shorts) -> np.int32:
    peak = np.int32(0)
    for start in range(0, values.size, TILE):
        part, target = values[start : start + TILE], out[start : start + TILE]
        peak = max(peak, most_bits(part.view(np.int32)))
        bits = part.view(np.uint32)
        for i in range(part.size):
            target[i] = np.uint16(brain_of(bits[i]) >> SIXTEEN)
    return peak


@jit
def add_brains(values: Floats, added: Floats, out: Shorts) -> np.int32:
    rounded = np.empty(TILE, np.float32)  # the same bytes as `whole`, as numbers
    whole, peak = rounded.view(np.uint32), np.int32(0)
    for start in range(0, values.size, TILE):
        part, target = values[start : start + TILE], out[start : start + TILE]
        add_up(part, added[start : start + TILE])
        bits = part.view(np.uint32)
        peak = max(peak, most_bits(part.view(np.int32)))
        for i in range(part.size):
            whole[i] = brain_of(bits[i])
            target[i] = np.uint16(whole[i] >> SIXTEEN)
        for i in range(part.size):
            part[i] -= rounded[i]
    return peak


@jit
def brain_of(bits: np.uint32) -> np.uint32:
    """Rounds a float32 to a number with a lower half of zero, as bits."""
    # Half of the last place less one, plus the last bit that stays: a carry rounds up, of two as
    # near only where that makes the last bit even.
    return np.uint32(bits + BELOW_UPPER + ((bits >> SIXTEEN) & ONE)) & UPPER
