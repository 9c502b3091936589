"""Blocks of vectors in Triton. Contracts: `kernels/blocks`."""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_device
from atomo.kernels.triton_jit import device_code

__all__ = ["filled", "magnitudes_of", "put", "put_bits", "starts_of", "take", "take_floats"]


@device_code
def take(vector, start, entries, BLOCK: tl.constexpr):
    """Loads a block of a vector from `start` on, with zeros after its end."""
    places = start + tl.arange(0, BLOCK)
    # Two branches: a mask that is unknown at compile time makes loads 4 bytes wide.
    if start + BLOCK <= entries:
        block = tl.load(vector + places)
    else:
        block = tl.load(vector + places, mask=places < entries, other=0)
    return block


@device_code
def take_floats(vector, start, entries, BLOCK: tl.constexpr):
    """Loads a block of any float dtype as float32: halves widen in registers, not in memory."""
    return take(vector, start, entries, BLOCK).to(tl.float32)


@device_code
def put(vector, start, entries, block, BLOCK: tl.constexpr):
    """Writes a block of a vector from `start` on, up to its end."""
    places = start + tl.arange(0, BLOCK)
    if start + BLOCK <= entries:
        tl.store(vector + places, block)
    else:
        tl.store(vector + places, block, mask=places < entries)


@device_code
def put_bits(words, at, value, inside):
    """Sets the bits of values of up to 64 bits from bit `at` on, in words that are 0 there."""
    word, shift = words + (at >> 5), (at & 31).to(tl.uint64)
    low = value << shift
    tl.atomic_or(word, low.to(tl.uint32).to(tl.int32, bitcast=True), mask=inside)
    middle = (low >> 32).to(tl.uint32).to(tl.int32, bitcast=True)
    tl.atomic_or(word + 1, middle, mask=inside & (middle != 0))
    # In two steps: where nothing is left over, one of 64 places would be undefined.
    high = ((value >> 1) >> (63 - shift)).to(tl.uint32).to(tl.int32, bitcast=True)
    tl.atomic_or(word + 2, high, mask=inside & (high != 0))


@device_code
def magnitudes_of(entry):
    """Returns the bits of float32 magnitudes: they are ordered as the magnitudes, with NaN above
    all.
    """
    return entry.to(tl.int32, bitcast=True) & 0x7FFFFFFF


def starts_of(counts: Tensor) -> Tensor:
    """Returns the exclusive sums of the counts in the last dimension, and the total at its end."""
    return torch.nn.functional.pad(counts.cumsum(-1), (1, 0))


def filled(values: Sequence[float], beside: Tensor) -> Tensor:
    """Makes a float32 tensor of a few numbers on a device, without a wait of the host."""
    return to_device(torch.tensor(values, dtype=torch.float32), beside.device)
