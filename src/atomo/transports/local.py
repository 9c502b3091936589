"""Ranks as threads of one process: for tests and simulation, with the semantics of real ones."""

import queue
from collections.abc import Sequence
from typing import final

from atomo.errors import DeadlineExpired, PeerLost
from atomo.transports.base import Message, Transport
from atomo.wire import Bytes

__all__ = ["LocalTransport", "network"]


@final
class LocalTransport(Transport):
    """One rank of an in-process job."""

    def __init__(self, rank: int, inboxes: Sequence["queue.SimpleQueue[Message | int]"]) -> None:
        self.rank = self.local_index = rank
        self.size = self.local_size = len(inboxes)
        self.sent_bytes = self.received_bytes = 0
        self.aborted: int | None = None
        self._inboxes = inboxes
        self._early: list[Message] = []

    def send(self, to: int, data: Bytes, what: str) -> None:
        self.sent_bytes += data.size
        self._inboxes[to].put(Message(self.rank, data))  # what is changed too early arrives changed

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        for place, message in enumerate(self._early):
            if source in (None, message.source):
                return self._early.pop(place)
        while True:
            message = self._next(timeout_s, what)
            if source in (None, message.source):
                return message
            self._early.append(message)

    def drain(self, timeout_s: float) -> None:
        """Everything left when it was sent."""

    def abort(self, exit_code: int) -> None:
        for inbox in self._inboxes:
            inbox.put(exit_code)
        self.aborted = exit_code

    def _next(self, timeout_s: float, what: str) -> Message:
        try:
            message = self._inboxes[self.rank].get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for {what}; see --timeout"
            ) from None
        if isinstance(message, int):
            raise PeerLost(-1, f"waiting for {what} (the job was aborted with {message})")
        self.received_bytes += message.data.size
        return Message(message.source, message.data.copy())  # its own, to change as it likes


def network(size: int) -> list[LocalTransport]:
    """The transports of a job of `size` ranks, to be used by a thread each."""
    inboxes: list[queue.SimpleQueue[Message | int]] = [queue.SimpleQueue() for _ in range(size)]
    return [LocalTransport(rank, inboxes) for rank in range(size)]
