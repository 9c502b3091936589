"""Readings of a parameter as a matrix.

The weight of a convolution, (a, b, kh, kw) with k = kh * kw > 1, has two natural readings:

* pairs:   (a * b / 2, 2 * k), or (a * b, k) where a * b is odd: the choice of ATOMO. Tall and thin,
           so its spectrum is cheap;
* filters: (a, b * k), one row for each output channel.

A matrix keeps its shape, and so does a convolution with k = 1. Any other number of dimensions goes
like a convolution, k being the product of all sizes after the second.

A vector, such as a flattened gradient, is folded: its entries fill the rows of a matrix that is as
near to a square as possible, because an atom of a square has the fewest numbers. Zeros fill up the
last rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isqrt, prod
from types import MappingProxyType
from typing import Final

import torch
from jaxtyping import Float

__all__ = ["MATRICISATIONS", "add_matrix", "aligned", "as_matrix", "matrix_shapes"]

ALIGNMENT: Final = 64  # bytes, as PyTorch allocates
SHAPES: Final = 4096  # of parameters that are remembered: asked for at each gradient of each worker


def pairs(a: int, b: int, k: int) -> tuple[int, int]:
    return (a * b, k) if a * b % 2 else (a * b // 2, 2 * k)


def filters(a: int, b: int, k: int) -> tuple[int, int]:
    return a, b * k


MATRICISATIONS: Mapping[str, tuple[Callable[[int, int, int], tuple[int, int]], ...]] = (
    MappingProxyType({"pairs": (pairs,), "filters": (filters,), "auto": (pairs, filters)})
)


@lru_cache(SHAPES)
def matrix_shapes(shape: torch.Size, matricisation: str) -> tuple[tuple[int, int], ...]:
    """Returns the different (m, n) in which `matricisation` may read a parameter of `shape`."""
    if len(shape) < 2:
        return (folded(shape.numel()),)
    a, b, k = shape[0], shape[1], prod(shape[2:])
    if k == 1:
        return ((a, b),)
    return tuple(dict.fromkeys(read(a, b, k) for read in MATRICISATIONS[matricisation]))


def folded(entries: int) -> tuple[int, int]:
    """Returns the sides of the smallest nearly square matrix that holds a number of entries.

    >>> folded(9), folded(10), folded(13)
    ((3, 3), (4, 3), (4, 4))
    """
    m = isqrt(max(1, entries) - 1) + 1
    return m, max(1, -(-entries // m))


def as_matrix(gradient: Float[torch.Tensor, "..."], m: int, n: int) -> Float[torch.Tensor, "m n"]:
    """Reshapes a contiguous gradient to an m x n matrix: a view, unless zeros fill it up."""
    missing = m * n - gradient.numel()
    if missing:
        gradient = torch.nn.functional.pad(gradient.view(-1), (0, missing))
    return gradient.view(m, n)


def add_matrix(
    out: Float[torch.Tensor, "..."],
    left: Float[torch.Tensor, "k m"],
    right: Float[torch.Tensor, "k n"],
    scale: float,
) -> None:
    """Adds `scale` times left^T right to the tensor that is read as this matrix, in place."""
    m, n = left.shape[1], right.shape[1]
    if out.is_contiguous() and m * n == out.numel() and is_aligned(out):
        out.view(m, n).addmm_(left.T, right, alpha=scale)
        return
    matrix = out.new_zeros(m * n)
    entries = matrix[: out.numel()].view(out.shape)
    entries.copy_(out)
    matrix.view(m, n).addmm_(left.T, right, alpha=scale)
    out.copy_(entries)


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if it is aligned as memory of its own is, else a copy.

    On some processors MKL rounds products by the alignment of the matrices. Without this, the bits
    of a run would depend on the places of layers in buckets.
    """
    return tensor if is_aligned(tensor) else tensor.clone()


def is_aligned(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor is aligned as memory of its own is, or is not on the CPU."""
    return tensor.device.type != "cpu" or tensor.data_ptr() % ALIGNMENT == 0
