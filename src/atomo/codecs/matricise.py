"""How a parameter with two dimensions or more is read as a matrix.

The weight of a convolution, (a, b, kh, kw) with k = kh * kw > 1, has two natural readings:

* pairs:   (a * b / 2, 2 * k), or (a * b, k) where a * b is odd: the choice of ATOMO. Tall and thin,
           so its spectrum is cheap;
* filters: (a, b * k), one row for each output channel.

A matrix is read as it is, and so is a convolution with k = 1. Any other number of dimensions goes
like a convolution, k being the product of all sizes after the second.
"""

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

from torch import Size

from atomo.errors import CodecError

__all__ = ["MATRICISATIONS", "matrix_shapes"]


def pairs(a: int, b: int, k: int) -> tuple[int, int]:
    return (a * b, k) if a * b % 2 else (a * b // 2, 2 * k)


def filters(a: int, b: int, k: int) -> tuple[int, int]:
    return a, b * k


MATRICISATIONS: Mapping[str, tuple[Callable[[int, int, int], tuple[int, int]], ...]] = (
    MappingProxyType({"pairs": (pairs,), "filters": (filters,), "auto": (pairs, filters)})
)


def matrix_shapes(shape: Size, matricisation: str) -> tuple[tuple[int, int], ...]:
    """The different (m, n) in which `matricisation` may read a parameter of `shape`.

    Raises:
        CodecError: the parameter has fewer than two dimensions.
    """
    if len(shape) < 2:
        raise CodecError(f"svd: shape {tuple(shape)} is no matrix; send such a parameter dense")
    a, b, k = shape[0], shape[1], prod(shape[2:])
    if k == 1:
        return ((a, b),)
    return tuple(dict.fromkeys(read(a, b, k) for read in MATRICISATIONS[matricisation]))
