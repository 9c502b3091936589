"""Iteration over a few rows of a matrix at a time, so that intermediate tensors stay small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from jaxtyping import Float

__all__ = ["chunks"]

CHUNK: Final = 2**20  # entries


def chunks(matrix: Float[torch.Tensor, "m n"]) -> Iterator[Float[torch.Tensor, "_ n"]]:
    """Yields the rows of `matrix`, in blocks of about a million entries."""
    step = max(1, CHUNK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        yield matrix[start : start + step]
