"""Sampling of entries, each with its own probability. The contract of all backends.

The entries of each tile that starts at entry s, of 1024, draw from key mix(seed ^ mix(s)) of
`random_words`: the upper 24 bits of the word of an entry's place i in its tile, followed by the
53 upper bits of mix(key + i), so that the smallest probability is exact too.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Int64

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = ["TILE", "add_cosines", "backend", "best_rate", "sample_entries"]

TILE: Final = 1024

backend = backend_for(__name__, "cpu", "reference", "cuda")


def best_rate(values: Float[torch.Tensor, " n"], budget: float) -> float:
    """Computes the rate t for which the probabilities min(1, |v_i| t) add up to `budget`.

    That is Algorithm 1 of ATOMO without its sort: of all probabilities with this sum, these make
    the variance least.

    Args:
        values: contiguous.
        budget: above 0.

    Returns:
        inf where `budget` is at least the number of entries that are not 0, all of which are then
        certain; NaN where an entry is not finite.
    """
    return backend(values).best_rate(values, budget)


def sample_entries(
    values: Float[torch.Tensor, " n"], rate: float, seed: int
) -> Int64[torch.Tensor, " k"]:
    """Draws each entry independently: entry i with probability min(1, |v_i| rate), and never a 0.

    Args:
        values: contiguous and finite.
        rate: `rate` times the largest magnitude may be infinite.
        seed: of the counter-based random numbers, 0 to 2^63 - 1.

    Returns:
        Their places, ascending.
    """
    return backend(values).sample_entries(values, rate, seed)


def add_cosines(
    out: Float[torch.Tensor, " n"],
    indices: Int64[torch.Tensor, " k"],
    values: Float[torch.Tensor, " k"],
    waves: Float[torch.Tensor, "block block"],
) -> None:
    """Adds values[i] times row (indices[i] mod block) of `waves` to block indices[i] // block.

    Args:
        out: contiguous; entries after its end are left out.
        indices: below len(out), rounded up to whole blocks. Checked by the caller.
        values: the factor of each row.
        waves: one function on a block for each row.
    """
    parts = (to_device(part, out.device) for part in (indices, values, waves))
    backend(out).add_cosines(out, *parts)
