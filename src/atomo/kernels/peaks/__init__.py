"""Tensors joined in one vector, and the largest magnitude of each. The contract of all backends.

All take one pass over memory: the caller knows which parts of a gradient are all zero,
and which are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float

from atomo.kernels.backends import backend_for

__all__ = ["INFINITY", "backend", "join", "largest", "largest_in"]

INFINITY: Final = 0x7F800000
"""The bits of infinity; those of NaN are more, and those of a finite number fewer."""

backend = backend_for(__name__, "cpu", "reference", "cuda")


def join(
    sources: Sequence[torch.Tensor], out: Float[torch.Tensor, " n"], scale: float
) -> list[int]:
    """Fills `out` with one tensor after the other, over `scale`.

    Args:
        sources: on the device of `out`, of any floating dtype, shape and strides; together of as
            many entries as `out`.
        out: contiguous float32; or of the dtype of all sources, where the scale is 1.
        scale: the divisor of each entry.

    Returns:
        For each source, the bits of the largest magnitude that stands for it in `out`, read as an
        integer: 0 where it is zero throughout, INFINITY or more where it is not finite.
    """
    return backend(out).join(sources, out, scale)


def largest(sources: Sequence[torch.Tensor]) -> list[int]:
    """Returns the result of `join` with a scale of 1, without a copy of the tensors.

    Args:
        sources: at least one, on one device, of any floating dtype.
    """
    return backend(sources[0]).largest(sources)


def largest_in(
    vector: Float[torch.Tensor, " n"], starts: Sequence[int], stops: Sequence[int]
) -> list[int]:
    """Returns the result of `largest` for parts of a vector, read from the last to the first: after
    that the first are in the cache.

    Args:
        vector: contiguous, of any floating dtype.
        starts: the first entry of each part.
        stops: the entry after the last of each part.
    """
    return backend(vector).largest_in(vector, starts, stops)
