"""The discrete cosine transform of tiles: a rotation of differences before they are coded.

A matrix is cut into tiles of 64 x 64 entries, a vector into runs of 64. Tiles at the edges are
smaller, with the transform of their own size. Each transform is orthonormal, so errors keep their
size, and a memory of coefficients is the transform of a memory of entries.

Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["rotate", "unrotate"]

TILE: Final = 64


def rotate(entries: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Returns the coefficients of a parameter in float32, in the shape of the parameter."""
    return transformed(entries, inverse=False)


def unrotate(coefficients: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Returns the entries that have these coefficients."""
    return transformed(coefficients, inverse=True)


def transformed(values: Float[Tensor, "..."], *, inverse: bool) -> Float[Tensor, "..."]:
    """Transforms the columns of a matrix, and its rows."""
    if not values.numel():
        return values
    rows = values.shape[0] if values.ndim > 1 else 1
    matrix = values.float().reshape(rows, -1)
    matrix = along_rows(matrix, inverse=inverse)
    if rows > 1:
        matrix = along_rows(matrix.T, inverse=inverse).T
    return matrix.reshape(values.shape)


def along_rows(matrix: Float[Tensor, "m n"], *, inverse: bool) -> Float[Tensor, "m n"]:
    """Transforms each run of a row."""
    return torch.cat([part @ basis for part, basis in runs(matrix, inverse=inverse)], 1)


def runs(matrix: Tensor, *, inverse: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the columns of each run, and the basis of its transform."""
    for part in torch.split(matrix, TILE, 1):
        basis = cosines(part.shape[1]).to(matrix.device)
        yield part, basis if inverse else basis.T


@cache
def cosines(size: int) -> Float[Tensor, "n n"]:
    """Returns the orthonormal DCT-II: a row a frequency.

    >>> cosines(2)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    angles = torch.arange(size)[:, None] * (torch.arange(size) + 0.5)
    basis = torch.cos(angles.double() * math.pi / size) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis.float()
