"""Rounding to sixteen bits as PyTorch operations, a cache full at a time. Contracts:
`kernels/cast`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["add_to_brain", "add_to_half", "to_brain", "to_half"]

LARGEST = 65504.0  # of a half
BLOCK = 2**17  # entries, on the CPU: with result and intermediates half a megabyte or so
DEVICE_BLOCK = 2**22  # intermediates of 16 MB stay in a cache; lower => more launches


def to_half(values: Tensor, scale: float) -> tuple[Tensor, float]:
    out = torch.empty_like(values, dtype=torch.float16)
    for part, rounded in blocks(values, out):
        rounded.copy_((part.float() / scale).clamp_(-LARGEST, LARGEST))
    return out, float(largest(values))


def add_to_half(values: Tensor, added: Tensor, scale: float) -> tuple[Tensor, float]:
    out, peaks = torch.empty_like(values, dtype=torch.float16), list[Tensor]()
    for part, addend, rounded in blocks(values, added, out):
        part.add_(addend)
        peaks.append(largest(part))
        rounded.copy_((part / scale).clamp_(-LARGEST, LARGEST))
        part.sub_(rounded.float().mul_(scale))
    return out, float(torch.stack(peaks).amax())  # one wait for a device; NaN stays NaN


def to_brain(values: Tensor) -> tuple[Tensor, float]:
    return values.to(torch.bfloat16), float(largest(values))


def add_to_brain(values: Tensor, added: Tensor) -> tuple[Tensor, float]:
    out, peaks = torch.empty_like(values, dtype=torch.bfloat16), list[Tensor]()
    for part, addend, rounded in blocks(values, added, out):
        part.add_(addend)
        peaks.append(largest(part))
        rounded.copy_(part)
        part.sub_(rounded.float())
    return out, float(torch.stack(peaks).amax())  # one wait for a device; NaN stays NaN


def blocks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields the same range of all vectors, one range after another."""
    size = BLOCK if vectors[0].device.type == "cpu" else DEVICE_BLOCK
    return zip(*(torch.split(vector, size) for vector in vectors), strict=True)


def largest(values: Tensor) -> Tensor:
    """Returns the largest magnitude; NaN if there is one."""
    low, high = values.aminmax()
    return torch.maximum(-low, high)
