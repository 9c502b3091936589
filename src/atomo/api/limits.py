"""Limits on the memory and the work that `atomo.decode` spends on an untrusted frame.

A frame of a hundred bytes may be a valid frame of millions of entries, for example of zeros. So the
caller limits the allocated memory, and the work is bounded by that limit and by the received bytes.
Every frame that `atomo.encode` makes of tensors within the limits is accepted, except frames with
hundreds of atoms of a large matrix that blosc made much smaller still.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Size

from atomo.codecs.cost import DecodeCost
from atomo.errors import FrameError

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "Limits"]

MOST_ENTRIES: Final = 2**26  # 256 MiB of float32
MOST_BYTES: Final = 2**30
PER_TENSOR: Final = DecodeCost(work=2**16, room=2**13)  # of a tensor of any size
WORK_PER_ENTRY: Final = 16  # visits, of each entry that the caller accepts
WORK_PER_BYTE: Final = 2**12  # visits; the worst case: 32 bits of indices, each a cosine block

Declared = tuple[torch.dtype, Size]


@final
@dataclass(frozen=True)
class Limits:
    """Limits for one frame. Each check raises FrameError with the demand and the limit."""

    entries: int
    """Maximum number of entries of all tensors."""
    bytes: int
    """Maximum number of bytes that are allocated at the same time."""
    came: int
    """Bytes of the frame."""

    @property
    def tensors(self) -> int:
        """The largest number of tensors."""
        return self.bytes // PER_TENSOR.room

    @property
    def work(self) -> int:
        """The largest number of visits of an entry, of about a nanosecond each."""
        return WORK_PER_ENTRY * self.entries + WORK_PER_BYTE * self.came

    def left_for_sections(self, tensors: Iterable[Declared]) -> int:
        """Returns the bytes that the decoded tensors leave for the sections of the frame."""
        shapes = [(dtype, shape.numel()) for dtype, shape in tensors]
        entries = sum(count for _, count in shapes)
        if entries > self.entries:
            raise FrameError(
                f"the frame declares {entries} entries; at most {self.entries} accepted "
                "(`most_entries`)"
            )
        decoded = sum(count * dtype.itemsize + PER_TENSOR.room for dtype, count in shapes)
        return self.within_bytes(decoded)

    def check_costs(self, costs: Iterable[DecodeCost], budget: int) -> None:
        """Checks that decoding tensors of these costs, one after another, stays within the limits.

        Args:
            costs: of each tensor.
            budget: bytes that may still be allocated.
        """
        declared = list(costs)
        self.within_bytes(self.bytes - budget + max((cost.room for cost in declared), default=0))
        work = sum(cost.work + PER_TENSOR.work for cost in declared)
        if work > self.work:
            raise FrameError(
                f"decoding takes up to {work} visits of entries; at most {self.work} for a frame "
                f"of {self.came} bytes (raise `most_entries` for more)"
            )

    def within_bytes(self, needed: int) -> int:
        """Checks that `needed` bytes are within the limit, and returns the remaining bytes."""
        if needed > self.bytes:
            raise FrameError(
                f"decoding takes up to {needed} bytes of memory; at most {self.bytes} accepted "
                "(`most_bytes`)"
            )
        return self.bytes - needed
