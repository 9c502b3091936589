"""A matrix a few rows at a time, so that what is made of them stays small."""

from collections.abc import Iterator
from typing import Final

from jaxtyping import Float
from torch import Tensor

__all__ = ["chunks"]

CHUNK: Final = 2**20  # entries


def chunks(matrix: Float[Tensor, "m n"]) -> Iterator[Float[Tensor, "_ n"]]:
    """The rows of `matrix`, some at a time."""
    step = max(1, CHUNK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        yield matrix[start : start + step]
