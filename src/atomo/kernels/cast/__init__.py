"""Rounding of float32 to 16 bits, with the residual in one pass. The contract of all backends.

Entries are rounded to nearest, ties to even, as PyTorch casts them. All functions also return the
largest magnitude of the rounded entries, which is NaN or infinity if an entry is. A caller needs no
pass over the entries in advance: it assumes a magnitude, and repeats the call if it was wrong.
"""

from __future__ import annotations

import torch
from jaxtyping import BFloat16, Float, Float16

from atomo.kernels.backends import backend_for

__all__ = ["add_to_brain", "add_to_half", "backend", "to_brain", "to_half"]

backend = backend_for(__name__, "cpu", "reference")


def to_half(
    values: Float[torch.Tensor, " n"], scale: float
) -> tuple[Float16[torch.Tensor, " n"], float]:
    """Rounds contiguous values over `scale`, a power of two, to float16; larger values become the
    largest float16.
    """
    return backend(values).to_half(values, scale)


def add_to_half(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"], scale: float
) -> tuple[Float16[torch.Tensor, " n"], float]:
    """Rounds values + added as `to_half` does; `values` becomes the rounding error, in place.

    Where no sum exceeds the range of float16 times the scale, the sum is exactly the halves times
    the scale plus the rounding error.
    """
    return backend(values).add_to_half(values, added, scale)


def to_brain(values: Float[torch.Tensor, " n"]) -> tuple[BFloat16[torch.Tensor, " n"], float]:
    """Rounds contiguous values to bfloat16; values beyond its range become infinity."""
    return backend(values).to_brain(values)


def add_to_brain(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"]
) -> tuple[BFloat16[torch.Tensor, " n"], float]:
    """Rounds values + added as `to_brain` does; `values` becomes the rounding error, in place."""
    return backend(values).add_to_brain(values, added)
