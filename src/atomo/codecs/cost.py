"""Upper bounds on the cost of decoding, for refusing an untrusted payload before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch

__all__ = ["BESIDE", "FUSED", "VISITS", "DecodeCost", "read_count"]

VISITS: Final = 4  # of each entry, by the slowest of the usual decoders
BESIDE: Final = 8  # bytes for each entry, by the usual decoder that needs most
FUSED: Final = 16  # multiply-adds of a matrix product in the time of a visit


@final
@dataclass(frozen=True)
class DecodeCost:
    """An upper bound on the work and the memory that decoding one payload takes."""

    work: int = 0
    """Visits of entries, about a nanosecond each."""
    room: int = 0
    """Bytes allocated during decoding, without the payload and the decoded gradient."""

    def __add__(self, other: "DecodeCost") -> DecodeCost:
        return DecodeCost(self.work + other.work, self.room + other.room)


def read_count(counts: torch.Tensor, place: int = 0) -> int:
    """Returns a count that a payload claims; 0 if the count is absent or negative."""
    return max(0, int(counts[place])) if place < len(counts) else 0
