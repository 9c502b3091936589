"""Two magnitudes for the entries of a run: the Lloyd-Max quantiser. The contract of all backends.

Words of bits are those of `kernels.sign`.

S. P. Lloyd, "Least Squares Quantization in PCM", IEEE Transactions on Information Theory, 1982;
J. Max, "Quantizing for Minimum Distortion", IRE Transactions on Information Theory, 1960.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Float, Int32

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = ["MOST_ROUNDS", "add_levels", "backend", "pack_levels", "two_levels"]

backend = backend_for(__name__, "cpu", "reference")

MOST_ROUNDS: Final = 64
"""Rounds after which the levels are taken as they are; a dozen settles usual gradients."""


def two_levels(values: Float[torch.Tensor, " n"], run: int) -> Float[torch.Tensor, "runs 2"]:
    """Returns the lower and the upper level of the magnitudes of each run of entries.

    Lloyd's algorithm begins with the mean as threshold. Each round moves both levels to the means
    of the magnitudes below and above the threshold, and the threshold half-way between; the last
    round moves no entry. The last bit of sums depends on the backend; the means of the last round
    are sums in float64.

    Args:
        values: contiguous, at least one.
        run: entries in a run, at least 1; the last run may be shorter.

    Returns:
        Levels that are not finite where an entry is not.
    """
    return backend(values).two_levels(values, run)


def pack_levels(
    values: Float[torch.Tensor, " n"], run: int, levels: Float[torch.Tensor, "runs 2"]
) -> tuple[Int32[torch.Tensor, " words"], Int32[torch.Tensor, " words"]]:
    """Packs a bit for the sign of each entry, and a bit that is 1 where the upper level is nearer.

    Args:
        values: contiguous, at least one.
        run: as in `two_levels`.
        levels: the result of `two_levels`, finite. An entry half-way between has the lower level.
    """
    return backend(values).pack_levels(values, run, levels)


def add_levels(
    signs: Int32[torch.Tensor, " signs"],
    outer: Int32[torch.Tensor, " outer"],
    levels: Float[torch.Tensor, "runs sides"],
    run: int,
    out: Float[torch.Tensor, " n"],
) -> None:
    """Adds the level of each entry with its sign to `out`, which is contiguous float32.

    Args:
        signs: the bits of the signs; 1 for a negative entry.
        outer: the bits of the levels; 1 for the upper one.
        levels: the levels of each run, times a factor.
        run: as in `two_levels`.
        out: contiguous.

    Raises:
        ValueError: the numbers of words or levels are not those of the entries.
    """
    words, runs = (len(out) + 31) // 32, -(-len(out) // max(1, run))
    if len(signs) != words or len(outer) != words:
        raise ValueError(f"{len(signs)} and {len(outer)} words of bits, not {words}")
    if levels.shape != (runs, 2):
        raise ValueError(f"levels of shape {tuple(levels.shape)}, not ({runs}, 2)")
    moved = [to_device(part, out.device) for part in (signs, outer, levels)]
    backend(out).add_levels(*moved, run, out)
