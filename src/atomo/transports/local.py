"""Ranks as threads of one process, for tests and simulation, with the semantics of separate
processes.
"""

import threading
from collections.abc import Sequence
from typing import Final, final

from atomo.errors import PeerLost
from atomo.transports.base import Message, Transport, check_message
from atomo.transports.dead_peers import DeadPeers
from atomo.transports.inbox import Inbox, InboxMessage
from atomo.transports.outbox import Outbox
from atomo.wire import Bytes

__all__ = ["LocalTransport", "network"]

SIGKILL_EXIT_CODE: Final = 137  # exit code of a process that SIGKILL ended
EAGER_BYTES: Final = (
    4096  # a send of at most this completes immediately, as in Open MPI within a host
)


@final
class LocalTransport(Transport):
    """One rank of an in-process job. It is no more lenient than MPI: a message is copied only once
    its receiver waits for something, and `drain` waits for that copy unless the message is small.
    """

    def __init__(self, rank: int, network: "LocalNetwork", number: int = 0) -> None:
        self.rank = self.local_index = rank
        self.size = self.local_size = network.size
        self.sent_bytes = self.received_bytes = 0
        self.aborted: int | None = None
        self.fault_tolerant = True
        self._network, self._inboxes, self._outbox = network, network.inboxes(number), Outbox(rank)
        self._dups: list[LocalTransport] = []
        self._dead = DeadPeers()

    def send(self, to: int, data: Bytes, label: str) -> None:
        check_message(to, self.size, data, label)
        self._network.check_alive(self.rank)
        if self._dead.is_ignored(to):
            return
        pending = self._outbox.add(to)
        self._inboxes[to].put(InboxMessage(self.rank, data, pending))
        if data.size <= EAGER_BYTES:
            pending.complete()
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        message = self._inboxes[self.rank].take(source, timeout_s, label)
        self.received_bytes += message.data.size
        return Message(message.source, message.data)

    def drain(self, timeout_s: float) -> None:
        self._outbox.drain(timeout_s)
        for channel in self._dups:
            channel.drain(timeout_s)

    def dup(self, timeout_s: float) -> "LocalTransport":
        del timeout_s  # no wait for other ranks
        duplicate = LocalTransport(self.rank, self._network, 1 + len(self._dups))
        self._dups.append(duplicate)
        return duplicate

    def abort(self, exit_code: int) -> None:
        self._network.abort(exit_code)
        self.aborted = exit_code

    def exit_rank(self, exit_code: int) -> None:
        self._network.lose(self.rank, exit_code)

    def ignore_rank(self, rank: int) -> None:
        self._dead.ignore_rank(rank)
        self._inboxes[self.rank].ignore_rank(rank)
        self._outbox.ignore_rank(rank)

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        if not if_stuck:  # a thread is never known to be stuck
            self._network.lose(rank, SIGKILL_EXIT_CODE)
        return True


@final
class LocalNetwork:
    """The inboxes of all ranks of a job, and of each duplicate."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._inboxes: list[list[Inbox]] = []  # by duplicate, then by rank
        self._aborted: int | None = None
        self._dead: dict[int, int] = {}  # exit codes, by rank

    def inboxes(self, number: int) -> list[Inbox]:
        """Returns the inboxes of one duplicate, and makes them on the first call."""
        with self._lock:
            while len(self._inboxes) <= number:
                self._inboxes.append([Inbox(rank) for rank in range(self.size)])
                self._abort(self._inboxes[-1])
                for rank, exit_code in self._dead.items():
                    mark_dead(self._inboxes[-1], rank, exit_code)
            return self._inboxes[number]

    def abort(self, exit_code: int) -> None:
        """Ends every wait of every inbox, also of inboxes that are made later."""
        with self._lock:
            self._aborted = exit_code
            for inboxes in self._inboxes:
                self._abort(inboxes)

    def lose(self, rank: int, exit_code: int) -> None:
        """Kills a rank: it neither sends nor receives any more, and the other ranks notice."""
        with self._lock:
            self._dead.setdefault(rank, exit_code)
            for inboxes in self._inboxes:
                mark_dead(inboxes, rank, exit_code)

    def check_alive(self, rank: int) -> None:
        """Raises PeerLost in the thread of a dead rank."""
        if rank in self._dead:
            raise PeerLost(rank, "sending, itself")

    def _abort(self, inboxes: list[Inbox]) -> None:
        if self._aborted is not None:
            for inbox in inboxes:
                inbox.abort(self._aborted)


def mark_dead(inboxes: Sequence[Inbox], dead: int, exit_code: int) -> None:
    """Ends the waits of a dead rank and the waits for it."""
    for rank, inbox in enumerate(inboxes):
        if rank == dead:
            inbox.abort(exit_code)
        else:
            inbox.lose(dead)


def network(size: int) -> list[LocalTransport]:
    """Returns the transports of a job of `size` ranks, one for each thread."""
    network = LocalNetwork(size)
    return [LocalTransport(rank, network) for rank in range(size)]
