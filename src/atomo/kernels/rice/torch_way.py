"""Golomb-Rice codes of gaps between indices that are elsewhere. Contracts: `kernels/rice`."""

from torch import Tensor

from atomo.kernels.rice import numba_way

__all__ = ["pack"]


def pack(indices: Tensor, room: int) -> Tensor:
    return numba_way.pack(indices.cpu(), room)  # a code begins where the last one ends
