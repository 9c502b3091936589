"""Declarations of a codec: its laws, its granularity, and the layout of its payloads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import torch

__all__ = ["Field", "Granularity", "Law"]


class Law(Enum):
    """A promise about decode(encode(g)) for a gradient g with n entries."""

    LOSSLESS = auto()
    """The result equals g, bit for bit."""
    UNBIASED = auto()
    """The expectation of the result over the generator is g."""
    CONTRACTION = auto()
    """The result is closer to g than zero is, so that a residual cannot grow forever."""
    SUMMABLE = auto()
    """Payloads of several workers with one shared seed can be summed: the sum of their `addend`
    decodes to the sum of their gradients. An all-reduce can then replace an all-gather."""


class Granularity(Enum):
    """The input of one call of `encode`."""

    ENTRIES = auto()
    """Any number of parameters, flattened and concatenated: their shapes do not matter."""
    PARAMETER = auto()
    """A parameter in its own shape, of any dimensions."""


@dataclass(frozen=True)
class Field:
    """The bounds of one payload tensor; a receiver checks them before it allocates anything."""

    dtype: torch.dtype
    max_shape: tuple[int, ...]
    """The largest size of each dimension. A smaller one passes; `add_decoded` checks the rest."""
    max_entries: int | None = None
    """The largest number of entries, if not all dimensions can have their maximum together."""
