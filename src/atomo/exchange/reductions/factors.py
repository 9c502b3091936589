"""The factors of the matrices of a bucket, side by side in flat tensors that are summed.

A matrix M of m x n is the product of P, m x rank, and the transpose of Q, n x rank. Vectors, and
matrices that are smaller than their factors, are dense. They follow the factors in the same tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs.spectral.matricise import matrix_shapes
from atomo.codecs.spectral.svd import SVD
from atomo.exchange.compressor import gradient_of, replace_gradient
from atomo.fusion import Bucket, Part

__all__ = ["Factors", "Matrix", "Side"]


@final
@dataclass(frozen=True)
class Matrix:
    """A parameter that is sent as factors."""

    part: Part
    m: int
    n: int
    rank: int

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.part.slots[0].name


@final
class Side:
    """One factor of each matrix, followed by the dense parameters."""

    def __init__(self, shapes: Sequence[tuple[int, int]], dense: int, device: torch.device) -> None:
        ends = [0, *accumulate(rows * rank for rows, rank in shapes)]
        self.flat = torch.zeros(ends[-1] + dense, device=device)
        self.low, self.dense = self.flat[: ends[-1]], self.flat[ends[-1] :]
        places = [*zip(ends, ends[1:], shapes, strict=False)]
        self.factors = [self.flat[start:stop].view(shape) for start, stop, shape in places]
        runs = [[*run] for _, run in groupby(places, key=lambda place: place[2])]
        self._stacks = [self.flat[run[0][0] : run[-1][1]].view(-1, *run[0][2]) for run in runs]

    def orthonormalise(self) -> None:
        """Makes the columns of each factor orthonormal, also at rank 1.

        The QR decomposition by Householder reflections is exact for columns of any norm, and
        completes the columns of a factor of less than full rank, or of zeros. So no column stays
        zero after a step with a gradient that is zero or of low rank.
        """
        for stack in self._stacks:
            stack.copy_(torch.linalg.qr(stack).Q)


@final
class Factors:
    """Tensors for the factors of one bucket, and the places of its parts in them."""

    def __init__(self, bucket: Bucket, device: torch.device) -> None:
        pairs = [(part, matrix_of(part)) for part in bucket.parts]
        matrices = [matrix for _, matrix in pairs if matrix]
        # Matrices of equal shapes are adjacent, to be orthonormalised in one call.
        self.matrices = sorted(matrices, key=lambda matrix: (matrix.m, matrix.n, matrix.rank))
        self.dense = tuple(part for part, matrix in pairs if matrix is None)
        dense = sum(part.shape.numel() for part in self.dense)
        self.left = Side([(matrix.m, matrix.rank) for matrix in self.matrices], dense, device)
        self.right = Side([(matrix.n, matrix.rank) for matrix in self.matrices], dense, device)

    def matrices_in(self, flat: Float[Tensor, " n"]) -> list[Float[Tensor, "_ _"]]:
        """Returns a view of each matrix in a flat tensor of the size of the bucket."""
        return [flat[x.part.start : x.part.stop].view(x.m, x.n) for x in self.matrices]

    def pour(self, dense: Float[Tensor, " k"], flat: Float[Tensor, " n"]) -> None:
        """Copies the dense parameters to their places in a flat tensor of the bucket."""
        sizes = [part.shape.numel() for part in self.dense]
        for part, values in zip(self.dense, torch.split(dense, sizes), strict=True):
            own = gradient_of(part, flat).copy_(values.view(part.shape))
            replace_gradient(part, flat, own)


def matrix_of(part: Part) -> Matrix | None:
    """Returns a part as a matrix; None if it is dense, since factors would not be smaller."""
    if not isinstance(part.codec, SVD) or len(part.shape) < 2:
        return None
    ((m, n),) = matrix_shapes(part.shape, part.codec.matricisation)
    rank = min(part.codec.rank, m, n)
    return Matrix(part, m, n, rank) if rank * (m + n) < m * n else None
