"""Vectors of several frames as one tensor on the device of their sum, for one launch to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from atomo.core.devices import to_device, uses_pinned_memory

__all__ = ["joined", "stacked"]

ALIGNED: Final = 16  # entries; rows begin at multiples, so that programs read whole vectors of them


def stacked(vectors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Stacks vectors of one length, at least one, as rows; a single vector is not copied."""
    if len(vectors) == 1:
        return to_device(vectors[0], device)[None]
    length = len(vectors[0])
    size = -(-length // ALIGNED) * ALIGNED
    rows = room(vectors, device, len(vectors), size)
    for row, vector in zip(rows, vectors, strict=True):
        row[:length] = vector
    return to_device(rows, device)[:, :length]


def joined(vectors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Moves vectors of any length to a device in one copy."""
    sizes = [len(vector) for vector in vectors]
    if len(vectors) == 1 or not any(sizes):
        return [to_device(vector, device) for vector in vectors]
    whole = room(vectors, device, sum(sizes))
    for part, vector in zip(torch.split(whole, sizes), vectors, strict=True):
        part[:] = vector
    return [*torch.split(to_device(whole, device), sizes)]


def room(vectors: Sequence[torch.Tensor], device: torch.device, *size: int) -> torch.Tensor:
    """Returns zeros on the device if all vectors are there, or else on the host, in pinned memory
    where the copy to the device can then be asynchronous.
    """
    there = all(vector.device == device for vector in vectors)
    pinned = uses_pinned_memory(device) and not there
    home = device if there else torch.device("cpu")
    return torch.zeros(*size, dtype=vectors[0].dtype, device=home, pin_memory=pinned)
