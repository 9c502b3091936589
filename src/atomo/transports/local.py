"""Ranks as threads of one process: for tests and simulation, with the semantics of real ones."""

import threading
from collections.abc import Sequence
from typing import Final, final

from atomo.errors import PeerLost
from atomo.transports.base import Message, Transport, check_message
from atomo.transports.gone import Gone
from atomo.transports.inbox import Inbox, Parcel
from atomo.transports.leaving import Outbox
from atomo.wire import Bytes

__all__ = ["LocalTransport", "network"]

KILLED: Final = 137  # exit code of a process that SIGKILL ended
EAGER: Final = 4096  # bytes that leave before anybody takes them: Open MPI's bound within a host


@final
class LocalTransport(Transport):
    """One rank of an in-process job. No kinder than MPI: nothing is copied before its receiver
    waits for something, and `drain` waits until then, unless it is little.
    """

    def __init__(self, rank: int, wires: "Wires", number: int = 0) -> None:
        self.rank = self.local_index = rank
        self.size = self.local_size = wires.size
        self.sent_bytes = self.received_bytes = 0
        self.aborted: int | None = None
        self.survives = True
        self._wires, self._inboxes, self._outbox = wires, wires.inboxes(number), Outbox(rank)
        self._channels: list[LocalTransport] = []
        self._gone = Gone()

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        self._wires.check_alive(self.rank)
        if self._gone.is_forgotten(to):
            return
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
        for channel in self._channels:
            channel.drain(timeout_s)

    def channel(self, timeout_s: float) -> "LocalTransport":
        del timeout_s  # nobody is waited for
        made = LocalTransport(self.rank, self._wires, 1 + len(self._channels))
        self._channels.append(made)
        return made

    def abort(self, exit_code: int) -> None:
        self._wires.abort(exit_code)
        self.aborted = exit_code

    def leave(self, exit_code: int) -> None:
        self._wires.lose(self.rank, exit_code)

    def forget(self, rank: int) -> None:
        self._gone.forget(rank)
        self._inboxes[self.rank].forget(rank)
        self._outbox.forget(rank)

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        if not if_stuck:  # no thread can be told to be
            self._wires.lose(rank, KILLED)
        return True


@final
class Wires:
    """The inboxes of all ranks of a job, and of each of their channels."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._inboxes: list[list[Inbox]] = []  # by channel, then by rank
        self._aborted: int | None = None
        self._dead: dict[int, int] = {}  # rank: its exit code

    def inboxes(self, number: int) -> list[Inbox]:
        """Those of a channel, which whoever asks first makes for all."""
        with self._lock:
            while len(self._inboxes) <= number:
                self._inboxes.append([Inbox(rank) for rank in range(self.size)])
                self._abort(self._inboxes[-1])
                for rank, exit_code in self._dead.items():
                    bury(self._inboxes[-1], rank, exit_code)
            return self._inboxes[number]

    def abort(self, exit_code: int) -> None:
        """Ends every wait on any of them, also on those that are yet to be made."""
        with self._lock:
            self._aborted = exit_code
            for inboxes in self._inboxes:
                self._abort(inboxes)

    def lose(self, rank: int, exit_code: int) -> None:
        """A rank is gone: it neither sends nor receives any more, and the others notice."""
        with self._lock:
            self._dead.setdefault(rank, exit_code)
            for inboxes in self._inboxes:
                bury(inboxes, rank, exit_code)

    def check_alive(self, rank: int) -> None:
        """Raises PeerLost in the thread of a rank that is gone."""
        if rank in self._dead:
            raise PeerLost(rank, "sending, itself")

    def _abort(self, inboxes: list[Inbox]) -> None:
        if self._aborted is not None:
            for inbox in inboxes:
                inbox.abort(self._aborted)


def bury(inboxes: Sequence[Inbox], dead: int, exit_code: int) -> None:
    """Ends the waits of a rank that is gone, and those for it."""
    for rank, inbox in enumerate(inboxes):
        if rank == dead:
            inbox.abort(exit_code)
        else:
            inbox.lose(dead)


def network(size: int) -> list[LocalTransport]:
    """The transports of a job of `size` ranks, to be used by a thread each."""
    wires = Wires(size)
    return [LocalTransport(rank, wires) for rank in range(size)]
