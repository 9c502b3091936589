"""Joining tensors as PyTorch operations. Contracts: `kernels/peaks`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["join", "largest", "largest_in"]

MAGNITUDE = 0x7FFFFFFF


def join(sources: Sequence[Tensor], out: Tensor, scale: float) -> list[int]:
    parts = torch.split(out, [source.numel() for source in sources])
    pairs = zip(parts, sources, strict=True)
    torch._foreach_copy_([part.view(source.shape) for part, source in pairs], [*sources])
    if scale != 1:
        out.div_(scale)
    return largest(parts)


def largest(sources: Sequence[Tensor]) -> list[int]:
    # A few launches for all tensors together, in place of thousands a step.
    norms = torch._foreach_norm([*sources], math.inf)
    peaks = torch.stack([norm.float() for norm in norms]).view(torch.int32)
    bits: list[int] = (peaks & MAGNITUDE).tolist()
    return bits


def largest_in(vector: Tensor, starts: Sequence[int], stops: Sequence[int]) -> list[int]:
    places = map(slice, starts, stops)
    return largest([vector[place] for place in places])
