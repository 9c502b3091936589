"""Entries chosen by a hash, the same on every machine. The contract of all backends.

Index i claims slot (w * slots) >> 32 of a hash table, where w is the upper half of
`scramble(i + seed)` of `random_words`.

Drawn indices are the images of 0, 1, 2, ... under a permutation of the numbers below the power of
two that holds all entries, walked until it is back among them. Of its words, which are
`mix(seed + i * GOLDEN) >> 2`, the first ROUNDS are keys, the next ROUNDS, made odd, factors: each
round is x -> (x ^ key) * factor, then x ^= x >> half the bits. The last word is another key.
"""

from __future__ import annotations

from typing import Final

import torch
from jaxtyping import Bool, Int64

from atomo.kernels.backends import backend_for

__all__ = ["ROUNDS", "backend", "draw", "survivors"]

ROUNDS: Final = 4

backend = backend_for(__name__, "cpu", "reference", "cuda")


def survivors(
    indices: Int64[torch.Tensor, " k"], seed: int, slots: int
) -> Bool[torch.Tensor, " k"]:
    """Returns the indices that keep their slot of a hash table where the last claim wins."""
    return backend(indices).survivors(indices, seed, slots)


def draw(seed: int, k: int, entries: int, device: torch.device) -> Int64[torch.Tensor, " k"]:
    """Draws distinct indices below `entries`, each with equal probability; the same on every
    device.

    Args:
        seed: a 64-bit integer, which chooses the permutation.
        k: the number of indices.
        entries: at least k.
        device: the device of the indices.
    """
    return backend(torch.empty(0, device=device)).draw(seed, k, entries, device)
