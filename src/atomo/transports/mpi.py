"""MPI, point to point, in typed buffers: the one module that knows mpi4py.

Nothing blocks inside MPI: every operation is started, then tested until its deadline, because a
rank that sits in a blocking call can neither report what it waits for nor be interrupted.
"""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

import mpi4py

mpi4py.rc.initialize = False  # importing this module starts nothing; `connect` does
mpi4py.rc.finalize = False

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from atomo.errors import DeadlineExpired, PeerLost, TransportError  # noqa: E402
from atomo.transports.base import AT_ONCE, Message, Transport, check_message  # noqa: E402
from atomo.wire import Bytes  # noqa: E402

__all__ = ["MpiTransport", "connect"]

LAST: Final = 7  # the tag of a message, or of the last part of one
MORE: Final = 8  # the tag of a part that others follow
# Bytes of one part between hosts. Open MPI sends over TCP what has up to 64 kB with its header as
# soon as the link is free; for more it first asks the receiver, and waits behind all that the link
# still carries the other way: with data both ways, dense gradients took 1.7 times as long.
PART: Final = 60_000
SPINS: Final = 50  # tests before the first pause: a message that is already there costs no pause
LONGEST_PAUSE_S: Final = (
    2e-4  # a core shared with a computing rank is worth more than an answer now
)
T = TypeVar("T")
PROCESS_FAILED: Final = 75  # MPI_ERR_PROC_FAILED of Open MPI's fault-tolerance extension


def connect() -> "MpiTransport":
    """Starts MPI and joins the job that this process was launched in."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(MPI.Finalize)
    return MpiTransport(MPI.COMM_WORLD, ranks_here())


def ranks_here() -> list[int]:
    """The ranks on this host, in order."""
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = here.group.Translate_ranks(None, MPI.COMM_WORLD.group)
    here.Free()
    return list(ranks)


@final
class MpiTransport(Transport):
    """One rank of an MPI job."""

    def __init__(self, world: MPI.Intracomm, here: Sequence[int]) -> None:
        """A rank.

        Args:
            world: of all ranks of the job; nobody else uses it.
            here: the ranks on this host, in order.
        """
        self._world, self._here = world, here
        self.rank, self.size = world.rank, world.size
        self.local_index, self.local_size = here.index(world.rank), len(here)
        self._channels: list[MpiTransport] = []
        self.sent_bytes = self.received_bytes = 0
        self._leaving: list[tuple[MPI.Request, Bytes, int]] = []
        self._arriving: list[Incoming] = []  # in the order of their beginnings

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        self._reap()
        size = AT_ONCE if to in self._here else PART
        last = max(0, data.size - 1) // size
        with Translated(to, f"sending {what}"):
            for place in range(last + 1):
                part = data[place * size : (place + 1) * size]
                tag = LAST if place == last else MORE
                self._leaving.append((self._world.Isend([part, MPI.BYTE], to, tag), part, to))
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        with Translated(source, f"waiting for {what}"):
            message = Deadline(timeout_s).poll(lambda: self._arrived(source))
        if message is None:
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for {what}; see --timeout"
            )
        self.received_bytes += message.data.size
        return message

    def drain(self, timeout_s: float) -> None:
        if not Deadline(timeout_s).poll(lambda: not self._reap()):
            late = sorted({to for _, _, to in self._leaving})
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for rank {late} to take what was sent"
            )

        for channel in self._channels:
            channel.drain(timeout_s)

    def channel(self, timeout_s: float) -> "MpiTransport":
        world, request = self._world.Idup()
        if not Deadline(timeout_s).poll(request.Test):
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for all ranks to join; see --timeout"
            )
        made = MpiTransport(world, self._here)
        self._channels.append(made)
        return made

    def abort(self, exit_code: int) -> None:
        self._world.Abort(exit_code)

    def _arrived(self, source: int | None) -> Message | None:
        """The first message of a rank, or of any, if it is whole by now."""
        self._welcome()
        behind: set[int] = set()  # nothing overtakes what the same rank sent before
        for place, incoming in enumerate(self._arriving):
            wanted = source in (None, incoming.source) and incoming.source not in behind
            if wanted and incoming.is_whole():
                del self._arriving[place]
                return Message(incoming.source, incoming.data())
            behind.add(incoming.source)
        return None

    def _welcome(self) -> None:
        """Lets everything that others send begin to arrive, whoever is waited for.

        A large message is not on its way before it is taken: of several senders that are taken one
        after the other, all links but one would be idle.
        """
        status = MPI.Status()
        while (part := self._world.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            theirs = (one for one in self._arriving if one.source == status.source and one.more)
            incoming = next(theirs, None)
            if incoming is None:
                incoming = Incoming(status.source)
                self._arriving.append(incoming)
            incoming.take(part, status)

    def _reap(self) -> bool:
        """Lets go of buffers that have left. True while some have not."""
        still = []
        for request, data, to in self._leaving:
            with Translated(to, "sending to it"):
                if not request.Test():
                    still.append((request, data, to))
        self._leaving = still
        return bool(still)


@final
class Incoming:
    """A message that is on its way, in parts."""

    def __init__(self, source: int) -> None:
        self.source, self.more = source, True
        self._parts: list[Bytes] = []
        self._requests: list[MPI.Request] = []  # of the parts that are not known to be here

    def take(self, part: MPI.Message, status: MPI.Status) -> None:
        """Begins to receive the next part."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._parts.append(data)
        self._requests.append(part.Irecv([data, MPI.BYTE]))
        self.more = status.tag == MORE

    def is_whole(self) -> bool:
        """Whether all of it is here."""
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        return not self.more and not self._requests

    def data(self) -> Bytes:
        """All of it, once it is here."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


class Deadline:
    """A bound on one wait."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s

    def poll(self, test: Callable[[], T]) -> T | None:
        """The first true value of `test`, or None once the time is up."""
        spins = 0
        while not (value := test()):
            if time.monotonic() > self._end:
                return None
            spins += 1
            pause(spins)
        return value


def pause(spins: int) -> None:
    """Yields the core at first; sleeps once the wait turns out to be a long one."""
    if spins < SPINS:
        os.sched_yield()
    else:
        time.sleep(min(LONGEST_PAUSE_S, 1e-6 * spins))


class Translated:
    """Turns MPI's errors into ours."""

    def __init__(self, peer: int | None, doing: str) -> None:
        self._peer, self._doing = peer, doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, MPI.Exception):
            if error.Get_error_class() == PROCESS_FAILED:
                raise PeerLost(-1 if self._peer is None else self._peer, self._doing) from error
            raise TransportError(f"MPI failed while {self._doing}: {error}") from error
