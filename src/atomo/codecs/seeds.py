"""Seeds of the kernels' counter-based random numbers.

A payload of only a seed and values would decode into a gradient of any size. So such a seed
is marked: its low 16 bits are the number of entries modulo a prime just below 2^16, which
distinguishes all sizes that differ by less than 65521.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

__all__ = ["draw_marked_seed", "draw_seed", "is_marked"]

PRIME: Final = 65521
MARK: Final = 16  # bits


def draw_seed(generator: torch.Generator) -> int:
    """Draws a seed, at least 0 and below 2^63 - 1."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))


def draw_marked_seed(generator: torch.Generator, entries: int) -> int:
    """Draws a seed that is marked with a number of entries."""
    return draw_seed(generator) >> MARK << MARK | entries % PRIME


def is_marked(seeds: Sequence[int], entries: int) -> bool:
    """Returns True if `seeds` is a single seed that is marked with this number of entries."""
    return [seed % 2**MARK for seed in seeds] == [entries % PRIME] and seeds[0] >= 0
