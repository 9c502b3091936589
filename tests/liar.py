"""A rank whose frames arrive as somebody else would have them, over the in-process transport."""

from collections.abc import Callable, Sequence

import numpy as np

from atomo.transports import LocalTransport, Message, Transport
from atomo.wire import Bytes

__all__ = ["Liar", "honest"]

Lie = Callable[[Bytes, int], Sequence[Bytes]]
"""What is sent in place of a frame, and of the how-manyth."""


def honest(frame: Bytes, number: int) -> list[Bytes]:
    """Returns the frame itself."""
    del number
    return [frame]


class Liar(Transport):
    """Sends what its `lie` makes of each frame."""

    def __init__(self, own: LocalTransport, lie: Lie = honest) -> None:
        self._own, self.lie, self.count = own, lie, 0
        self.rank, self.size, self.fault_tolerant = own.rank, own.size, own.fault_tolerant
        self.local_index, self.local_size = own.local_index, own.local_size
        self.sent_bytes = self.received_bytes = 0

    def send(self, to: int, data: Bytes, what: str) -> None:
        self.count += 1
        for frame in self.lie(data, self.count):
            self._own.send(to, np.ascontiguousarray(frame), what)

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        return self._own.receive(source, timeout_s, what)

    def drain(self, timeout_s: float) -> None:
        self._own.drain(timeout_s)

    def ignore_rank(self, rank: int) -> None:
        self._own.ignore_rank(rank)

    def dup(self, timeout_s: float) -> Transport:
        raise NotImplementedError

    def abort(self, exit_code: int) -> None:
        self._own.abort(exit_code)
