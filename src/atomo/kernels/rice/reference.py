"""Golomb-Rice codes of gaps between indices that are elsewhere. Contracts: `kernels/rice`."""

from torch import Tensor

from atomo.kernels.rice import cpu

__all__ = ["pack"]


def pack(indices: Tensor, room: int) -> Tensor:
    return cpu.pack(indices.cpu(), room)  # a code begins where the last one ends
