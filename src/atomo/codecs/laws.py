"""What a codec declares: the laws that it obeys, what it sees, and what its payloads look like."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import torch

__all__ = ["Field", "Law", "Unit"]


class Law(Enum):
    """What decode(encode(g)) promises about a gradient g with n entries."""

    LOSSLESS = auto()
    """It equals g, bit for bit."""
    UNBIASED = auto()
    """Its expectation over the generator is g."""
    CONTRACTION = auto()
    """It is closer to g than zero is, so that what a residual memory keeps cannot grow forever."""
    SUMMABLE = auto()
    """Payloads of several workers, encoded with one shared seed, add up: the sum of their `addend`
    decodes to the sum of their gradients, so that an all-reduce serves in place of a gather."""


class Unit(Enum):
    """What a codec sees at once."""

    ENTRIES = auto()
    """Any number of parameters, flattened and joined: their shapes do not matter to it."""
    MATRIX = auto()
    """One parameter in its own shape, whatever that is."""


@dataclass(frozen=True)
class Field:
    """What a receiver accepts for one tensor of a payload, before it allocates anything."""

    dtype: torch.dtype
    most: tuple[int, ...]
    """The largest size of each dimension. A smaller one passes; `add_decoded` checks the rest."""
    entries: int | None = None
    """The largest product of these sizes, where not all of them can be the largest at once."""
