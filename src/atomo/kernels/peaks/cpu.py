"""Tensors joined in one vector, and the largest magnitude of each. Contracts: `kernels/peaks`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.peaks import reference

__all__ = ["join", "largest", "largest_in"]

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Indices = NDArray[np.int64]

MAGNITUDE = np.int32(0x7FFFFFFF)


def join(sources: Sequence[Tensor], out: Tensor, scale: float) -> list[int]:
    if out.dtype != torch.float32:
        return reference.join(sources, out, scale)
    whole, bits = out.numpy(), out.view(torch.int32).numpy()
    peaks, start = [], 0
    for source in sources:
        stop = start + source.numel()
        if source.dtype != torch.float32 or not source.is_contiguous():
            source = out[start:stop].view(source.shape).copy_(source)
        entries = source.view(-1).numpy()
        if scale == 1:
            peaks.append(int(copy(entries.view(np.int32), bits[start:stop])))
        else:
            peaks.append(
                int(divide(entries, np.float32(scale), whole[start:stop], bits[start:stop]))
            )
        start = stop
    return peaks


def largest(sources: Sequence[Tensor]) -> list[int]:
    if any(s.dtype != torch.float32 or not s.is_contiguous() for s in sources):
        return reference.largest(sources)
    return [int(most(source.view(-1).numpy().view(np.int32))) for source in sources]


def largest_in(vector: Tensor, starts: Sequence[int], stops: Sequence[int]) -> list[int]:
    if vector.dtype != torch.float32:
        return reference.largest_in(vector, starts, stops)
    peaks = np.empty(len(starts), np.int32)
    bounds = np.array((starts, stops), np.int64)
    most_in(vector.numpy().view(np.int32), bounds, peaks)
    bits: list[int] = peaks.tolist()
    return bits


@jit
def most_in(bits: Bits, bounds: Indices, peaks: Bits) -> None:
    """Stores the largest magnitude of each part, the last first."""
    for i in range(peaks.size - 1, -1, -1):
        peaks[i] = most(bits[bounds[0, i] : bounds[1, i]])


@jit
def most(bits: Bits) -> np.int32:
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return peak


@jit
def copy(source: Bits, out: Bits) -> np.int32:
    peak = np.int32(0)
    for i in range(source.size):
        bits = source[i]
        out[i] = bits
        peak = max(peak, np.int32(bits & MAGNITUDE))
    return peak


@jit
def divide(source: Floats, by: np.float32, out: Floats, bits: Bits) -> np.int32:
    for i in range(source.size):
        out[i] = source[i] / by
    peak = np.int32(0)
    for i in range(bits.size):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return peak
