"""Buffer for one frame at a time, reused for every frame.

New memory is mapped and cleared page by page, which for a frame of 45 MB takes several times as
long as filling it. Each section is copied into the buffer once it is encoded, so that no two
payloads are held at once. A gap before the sections is left for the head. The size of the head
depends on the sections, so the head is written last, into the end of the gap.
"""

from collections.abc import Sequence
from typing import Final, final

import numpy as np
from torch import Tensor

from atomo.codecs.base import Field
from atomo.wire.compression import Bytes, Compression
from atomo.wire.cursor import LONGEST_VARINT
from atomo.wire.frame import ALIGNMENT, FIXED, Header, head_of, sections_of, table_of

__all__ = ["FrameBuffer", "longest_head"]

SPARE: Final = 8  # a larger buffer has one part in SPARE more than needed


def longest_head(description: bytes, fields: Sequence[Field]) -> int:
    """Returns the largest number of bytes before the sections of a frame."""
    rows = sum(3 + LONGEST_VARINT * (1 + len(field.max_shape)) for field in fields)
    return FIXED.size + 2 * LONGEST_VARINT + len(description) + rows + ALIGNMENT


@final
class FrameBuffer:
    """A frame that is being written: `begin`, then `add` and `seal`."""

    def __init__(self) -> None:
        self._room: Bytes = np.empty(0, np.uint8)
        self._rows: list[bytes] = []
        self._start = self._end = 0

    def begin(self, head: int) -> None:
        """Begins a new frame, and discards the last one.

        Args:
            head: largest number of bytes before the sections: see `longest_head`.
        """
        self._rows, self._start, self._end = [], head, head

    def add(self, tensors: Sequence[Tensor], how: Compression) -> None:
        """Copies the next sections; the tensors may change afterwards."""
        rows, bodies = sections_of(tensors, how)
        self._rows += rows
        self._reserve(self._end + sum(body.size for body in bodies))
        for body in bodies:
            self._room[self._end : self._end + body.size] = body
            self._end += body.size

    def seal(self, header: Header, description: bytes) -> memoryview:
        """Completes the frame, with the bytes of `pack`; valid until the next `begin`."""
        self._reserve(self._end)
        table = table_of(self._rows, description)
        head = head_of(header, table, [self._room[self._start : self._end]])
        begin = self._start - len(head)
        self._room[begin : self._start] = np.frombuffer(head, np.uint8)
        return self._room[begin : self._end].data.toreadonly()

    def _reserve(self, size: int) -> None:
        """Grows the buffer to at least `size` bytes."""
        if size > self._room.size:
            larger = np.empty(size + size // SPARE, np.uint8)
            larger[self._start : self._end] = self._room[self._start : self._end]
            self._room = larger
