"""A transport that changes the frames that it sends, for tests of hostile input."""

from collections.abc import Callable, Sequence

import numpy as np

from atomo.transports import LocalTransport, Message, Transport
from atomo.wire import Bytes

__all__ = ["TamperingTransport", "unchanged"]

Tampering = Callable[[Bytes, int], Sequence[Bytes]]
"""Takes a frame and its number; returns the frames to send."""


def unchanged(frame: Bytes, number: int) -> list[Bytes]:
    """Returns the frame itself."""
    del number
    return [frame]


class TamperingTransport(Transport):
    """Sends the frames that `tamper` returns for each frame."""

    def __init__(self, own: LocalTransport, tamper: Tampering = unchanged) -> None:
        self._own, self.tamper, self.count = own, tamper, 0
        self.rank, self.size, self.fault_tolerant = own.rank, own.size, own.fault_tolerant
        self.local_index, self.local_size = own.local_index, own.local_size
        self.sent_bytes = self.received_bytes = 0

    def send(self, to: int, data: Bytes, label: str) -> None:
        self.count += 1
        for frame in self.tamper(data, self.count):
            self._own.send(to, np.ascontiguousarray(frame), label)

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        return self._own.receive(source, timeout_s, label)

    def drain(self, timeout_s: float) -> None:
        self._own.drain(timeout_s)

    def ignore_rank(self, rank: int) -> None:
        self._own.ignore_rank(rank)

    def dup(self, timeout_s: float) -> Transport:
        raise NotImplementedError

    def abort(self, exit_code: int) -> None:
        self._own.abort(exit_code)
