"""Random words as PyTorch operations, in int64, which wraps. Contracts: `random_words`."""

import torch
from torch import Tensor

from atomo.kernels import random_words as random

__all__ = ["mix", "random_words", "scramble", "tile_words"]

GOLDEN, FIRST, SECOND = (x - 2**64 for x in (random.GOLDEN, random.FIRST, random.SECOND))
STRIDE, ONCE, TWICE, MASK = 0x9E3779B9, 0x7FEB352D, 0x846CA68B, 0xFFFFFFFF


def signed(seed: int) -> int:
    """Returns the int64 with the bits of a seed of up to 64 bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def shifted(words: Tensor, bits: int) -> Tensor:
    """Shifts words right, with zeros from the left."""
    moved: Tensor = (words >> bits) & (2 ** (64 - bits) - 1)
    return moved


def scramble(x: Tensor) -> Tensor:
    x = (x ^ shifted(x, 30)) * FIRST
    x = (x ^ shifted(x, 27)) * SECOND
    return x ^ shifted(x, 31)


def mix(x: Tensor) -> Tensor:
    return scramble(x + GOLDEN)


def random_words(keys: Tensor, count: int) -> Tensor:
    """Returns the first `count` words of each key, one row for each key; non-negative."""
    low, high = keys[:, None] & MASK, shifted(keys[:, None], 32)
    x = torch.arange(random.LANES, device=keys.device) * STRIDE & MASK ^ low
    x = (x ^ x >> 16) * ONCE & MASK
    x = ((x ^ x >> 15) + high) * TWICE & MASK
    lanes = [x ^ x >> 16]
    while len(lanes) * random.LANES < count:
        x = lanes[-1]
        x = x ^ x << 13 & MASK
        x = x ^ x >> 17
        lanes.append(x ^ x << 5 & MASK)
    return torch.cat(lanes, 1)[:, :count]


def tile_words(values: Tensor, tile: int, seed: int) -> Tensor:
    """Returns a word for each value: tile t draws from key mix(seed ^ mix(t))."""
    numbers = torch.arange(-(-len(values) // tile), device=values.device)
    keys = mix(mix(numbers) ^ signed(seed))
    return random_words(keys, tile).view(-1)[: len(values)]
