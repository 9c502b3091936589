"""Two magnitudes for the entries of a run: the Lloyd-Max quantiser. The contract of all backends.

S. P. Lloyd, "Least Squares Quantization in PCM", IEEE Transactions on Information Theory, 1982;
J. Max, "Quantizing for Minimum Distortion", IRE Transactions on Information Theory, 1960.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float

from atomo.kernels.backends import backend_for

__all__ = ["MOST_ROUNDS", "backend", "two_levels"]

backend = backend_for(__name__, "cpu", "reference")

MOST_ROUNDS: Final = 64
"""Rounds after which the levels are taken as they are; a dozen settles usual gradients."""


def two_levels(values: Float[torch.Tensor, " n"], run: int) -> Float[torch.Tensor, "runs 2"]:
    """Returns the lower and the upper level of the magnitudes of each run of entries.

    Lloyd's algorithm begins with the mean as threshold. Each round moves both levels to the means
    of the magnitudes below and above the threshold, and the threshold half-way between; the last
    round moves no entry. Sums are in float64, and their last bit depends on the backend.

    Args:
        values: contiguous, at least one.
        run: entries in a run, at least 1; the last run may be shorter.

    Returns:
        Levels that are not finite where an entry is not.
    """
    return backend(values).two_levels(values, run)
