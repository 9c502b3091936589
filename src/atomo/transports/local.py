"""Ranks as threads of one process: for tests and simulation, with the semantics of real ones."""

from collections.abc import Sequence
from typing import Final, final

from atomo.transports.base import Message, Transport, check_message
from atomo.transports.inbox import Inbox, Parcel
from atomo.transports.leaving import Outbox
from atomo.wire import Bytes

__all__ = ["LocalTransport", "network"]

EAGER: Final = 4096  # bytes that leave before anybody takes them: Open MPI's bound within a host


@final
class LocalTransport(Transport):
    """One rank of an in-process job. No kinder than MPI: nothing is copied before its receiver
    waits for something, and `drain` waits until then, unless it is little.
    """

    def __init__(self, rank: int, inboxes: Sequence[Inbox]) -> None:
        self.rank = self.local_index = rank
        self.size = self.local_size = len(inboxes)
        self.sent_bytes = self.received_bytes = 0
        self.aborted: int | None = None
        self._inboxes, self._outbox = inboxes, Outbox(rank)

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        leaving = self._outbox.add(to)
        self._inboxes[to].put(Parcel(self.rank, data, leaving))
        if data.size <= EAGER:
            leaving.left()
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        parcel = self._inboxes[self.rank].take(source, timeout_s, what)
        self.received_bytes += parcel.data.size
        return Message(parcel.source, parcel.data)

    def drain(self, timeout_s: float) -> None:
        self._outbox.drain(timeout_s)

    def abort(self, exit_code: int) -> None:
        for inbox in self._inboxes:
            inbox.abort(exit_code)
        self.aborted = exit_code


def network(size: int) -> list[LocalTransport]:
    """The transports of a job of `size` ranks, to be used by a thread each."""
    inboxes = [Inbox(rank) for rank in range(size)]
    return [LocalTransport(rank, inboxes) for rank in range(size)]
