"""Entries chosen by a hash, in numba. Contracts: `kernels/draws`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.draws import ROUNDS
from atomo.kernels.jit import jit
from atomo.kernels.random_words.cpu import GOLDEN, mix, scramble

__all__ = ["draw", "permutation", "survivors"]

Indices = NDArray[np.int64]
U2, U32 = np.uint64(2), np.uint64(32)


def survivors(indices: Tensor, seed: int, slots: int) -> Tensor:
    winners = torch.empty(len(indices), dtype=torch.bool)
    mark_survivors(indices.numpy(), seed, slots, winners.numpy())
    return winners


def draw(seed: int, k: int, entries: int, device: torch.device) -> Tensor:
    indices = torch.empty(k, dtype=torch.int64, device=device)
    permute(permutation(seed), (entries - 1).bit_length(), entries, indices.numpy())
    return indices


@jit
def mark_survivors(indices: Indices, seed: int, slots: int, winners: NDArray[np.bool_]) -> None:
    """Lets every index claim a slot of a hash table, the last one winning; marks the winners."""
    table = np.zeros(slots, np.int64)
    places = np.empty(indices.size, np.int64)
    for i in range(indices.size):
        hashed = scramble(np.uint64(indices[i]) + np.uint64(seed)) >> U32
        places[i] = np.int64((hashed * np.uint64(slots)) >> U32)
        table[places[i]] = i + 1  # 0 is an empty slot
    for i in range(indices.size):
        winners[i] = table[places[i]] == i + 1


@jit
def permutation(seed: int) -> Indices:
    """Returns the keys and the odd factors of a permutation's rounds, then one more key."""
    words = np.empty(2 * ROUNDS + 1, np.int64)
    for i in range(words.size):
        words[i] = np.int64(mix(np.uint64(seed) + np.uint64(i) * GOLDEN) >> U2)
        if ROUNDS <= i < 2 * ROUNDS:
            words[i] |= 1
    return words


@jit
def permute(words: Indices, bits: int, entries: int, indices: Indices) -> None:
    """Fills `indices` with the images of 0, 1, 2, ... under a permutation of the entries."""
    mask, half = (1 << bits) - 1, max(1, bits // 2)
    for i in range(indices.size):
        x = i
        # A permutation of a power of two, walked until it is back among the entries, is one of the
        # entries (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
        while True:
            for r in range(ROUNDS):
                # Both can be undone: a product with an odd factor, and xor with the upper bits.
                x = ((x ^ (words[r] & mask)) * words[ROUNDS + r]) & mask
                x ^= x >> half
            x ^= words[2 * ROUNDS] & mask
            if x < entries:
                break
        indices[i] = x
