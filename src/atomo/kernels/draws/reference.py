"""Entries chosen by a hash, as PyTorch operations. Contracts: `kernels/draws`."""

import torch
from torch import Tensor

from atomo.kernels.draws import ROUNDS
from atomo.kernels.random_words.reference import GOLDEN, mix, scramble, shifted, signed

__all__ = ["draw", "survivors"]


def survivors(indices: Tensor, seed: int, slots: int) -> Tensor:
    hashed = shifted(scramble(indices + signed(seed)), 32)
    places = shifted(hashed * slots, 32)
    order = torch.arange(len(indices), device=indices.device)
    # The largest claim of a slot wins, in any order of the device's writes.
    table = torch.full((slots,), -1, device=indices.device)
    table.scatter_reduce_(0, places, order, "amax")
    return table[places] == order


def draw(seed: int, k: int, entries: int, device: torch.device) -> Tensor:
    words = permutation(seed, device)
    bits = (entries - 1).bit_length()
    mask, half = (1 << bits) - 1, max(1, bits // 2)
    indices = torch.arange(k, device=device)
    outside = torch.ones_like(indices, dtype=torch.bool)
    while outside.any():  # each time fewer than half, more or less: 2^bits < 2 entries
        x = indices[outside]
        for key, factor in zip(words[:ROUNDS], words[ROUNDS:], strict=False):
            x = ((x ^ (key & mask)) * factor) & mask
            x = x ^ x >> half
        indices[outside] = x ^ (words[2 * ROUNDS] & mask)
        outside = indices >= entries
    return indices


def permutation(seed: int, device: torch.device) -> Tensor:
    """Returns the keys and the odd factors of a permutation's rounds, then one more key."""
    steps = torch.arange(2 * ROUNDS + 1, device=device)
    words = shifted(mix(signed(seed) + steps * GOLDEN), 2)
    words[ROUNDS : 2 * ROUNDS] |= 1
    return words
