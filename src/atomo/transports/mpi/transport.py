"""A rank of an MPI job.

Nothing blocks inside MPI: every operation is started, then tested until its deadline, because a
rank that sits in a blocking call can neither report what it waits for nor be interrupted.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, final

import numpy as np
import torch

from atomo.errors import DeadlineExpired, PeerLost, TransportError
from atomo.transports.base import AT_ONCE, FOREVER_S, Message, Transport, check_message
from atomo.transports.deadline import Deadline
from atomo.transports.gone import Gone
from atomo.transports.mpi.device_lane import MpiLane
from atomo.transports.mpi.device_memory import staging, takes_device_memory
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import (
    LAST,
    MORE,
    Incoming,
    Outgoing,
    Translated,
    tells_of_death,
)
from atomo.transports.processes import Identity, is_stuck, kill, runs, used_s
from atomo.wire import Bytes

__all__ = ["MpiTransport"]

# Bytes of one part between hosts. Open MPI sends over TCP what has up to 64 kB with its header as
# soon as the link is free; for more it first asks the receiver, and waits behind all that the link
# still carries the other way: with data both ways, dense gradients took 1.7 times as long.
PART: Final = 60_000
RESTING_S: Final = 0.02  # between two looks of who waits for nothing soon; lower => a busier core
T = TypeVar("T")


@final
class MpiTransport(Transport):
    """One rank of an MPI job."""

    def __init__(
        self,
        world: MPI.Intracomm,
        here: Sequence[int],
        processes: Sequence[Identity] | None = None,
    ) -> None:
        """A rank.

        Args:
            world: of all ranks of the job; nobody else uses it.
            here: the ranks on this host, in order.
            processes: of all ranks, each on its host; None: a death ends the job.
        """
        self._world, self._here, self._processes = world, here, processes
        self.rank, self.size = world.rank, world.size
        self.local_index, self.local_size = here.index(world.rank), len(here)
        self.survives = processes is not None
        # Ranks in containers may share the host's name, and not its processes.
        self._seen = {one for one in here if processes is not None and runs(processes[one])}
        self._ask: Callable[[int, int, int, bool], None] | None = None
        self._channels: list[MpiTransport] = []
        self._lane: MpiLane | None = None
        self.sent_bytes = self.received_bytes = 0
        self._leaving: list[Outgoing] = []
        self._arriving: list[Incoming] = []  # in the order of their beginnings
        self._gone = Gone()
        self._undelivered: set[int] = set()  # to whom something never arrives
        # What MPI may still write to or read from: nobody says when it is done with the dead.
        self._left_behind: list[Outgoing | Incoming] = []

    @property
    def staging(self) -> str:
        vendor, version = MPI.get_vendor()
        library = f"{vendor} {'.'.join(map(str, version))}"
        return staging(takes_device_memory(), library, direct=self._lane is not None)

    def open_lanes(self, timeout_s: float) -> None:
        # On all ranks or on none: hosts may have other libraries.
        mine, least = (np.array([one], np.uint8) for one in (takes_device_memory() is True, False))
        request = self._world.Iallreduce(mine, least, MPI.MIN)
        if not Deadline(timeout_s).poll(request.Test):
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for all ranks to say what MPI they have"
            )
        if least[0]:
            self._lane = MpiLane(self._duplicate(timeout_s))

    def lane(self, device: torch.device) -> MpiLane | None:
        return self._lane if device.type == "cuda" else None

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        if self._gone.is_forgotten(to):
            return
        self._reap()
        if to in self._gone:
            raise PeerLost(to, f"sending {what}")
        size = AT_ONCE if to in self._here else PART
        last = max(0, data.size - 1) // size
        with Translated(to, f"sending {what}"):
            for place in range(last + 1):
                part = data[place * size : (place + 1) * size]
                tag = LAST if place == last else MORE
                self._leaving.append(
                    Outgoing(self._world.Isend([part, MPI.BYTE], to, tag), part, to)
                )
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        return self._received(source, Deadline(timeout_s), timeout_s, what)

    def rest(self, source: int, what: str) -> Message:
        deadline = Deadline(FOREVER_S, RESTING_S)
        return self._received(source, deadline, FOREVER_S, what)

    def _received(
        self, source: int | None, deadline: Deadline, timeout_s: float, what: str
    ) -> Message:
        doing = f"waiting for {what}"
        with Translated(source, doing):
            message = deadline.poll(lambda: self._arrived(source, doing))
        if message is None:
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for {what}; see --timeout"
            )
        self.received_bytes += message.data.size
        return message

    def drain(self, timeout_s: float) -> None:
        if not Deadline(timeout_s).poll(lambda: not self._reap()):
            late = sorted({one.to for one in self._leaving})
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for rank {late} to take what was sent"
            )
        if self._undelivered:
            raise PeerLost(min(self._undelivered), "sending to it")
        for channel in self._channels:
            channel.drain(timeout_s)

    def channel(self, timeout_s: float) -> "MpiTransport":
        made = MpiTransport(self._duplicate(timeout_s), self._here, self._processes)
        if self._lane is not None:
            made._lane = MpiLane(self._duplicate(timeout_s))
        self._channels.append(made)
        return made

    def _duplicate(self, timeout_s: float) -> MPI.Intracomm:
        """Another communicator of all ranks."""
        world, request = self._world.Idup()
        if not Deadline(timeout_s).poll(request.Test):
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for all ranks to join; see --timeout"
            )
        return world

    def abort(self, exit_code: int) -> None:
        self._world.Abort(exit_code)

    def leave(self, exit_code: int) -> None:
        if not self.survives:
            self.abort(exit_code)
        sys.stdout.flush()
        sys.stderr.flush()
        # Of a process that ends by itself nobody is told, and without MPI's goodbye it is waited
        # for in every later one.
        os.kill(os.getpid(), signal.SIGKILL)

    def forget(self, rank: int) -> None:
        self._gone.forget(rank)
        self._undelivered.discard(rank)
        self._drop_arriving(rank)
        self._drop_leaving(rank)

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        if self._processes is None:
            return False
        process = self._processes[rank]
        if rank in self._seen:
            if not if_stuck or is_stuck(process) or not runs(process):
                kill(process)
                self._gone.add([rank])  # MPI does not tell of one that had ended by itself
        elif self._ask is not None:
            self._ask(rank, process.pid, process.started, if_stuck)
        else:
            return False
        return True

    def processor_s(self, rank: int) -> float | None:
        known = self._processes is not None and rank in self._seen
        return used_s(self._processes[rank]) if self._processes and known else None

    def fence_elsewhere(self, ask: Callable[[int, int, int, bool], None]) -> None:
        self._ask = ask

    def _arrived(self, source: int | None, doing: str) -> Message | None:
        """The first message of a rank, or of any, if it is whole by now."""
        self._welcome()
        behind: set[int] = set()  # nothing overtakes what the same rank sent before
        for place, incoming in enumerate(self._arriving):
            wanted = source in (None, incoming.source) and incoming.source not in behind
            if wanted and self._unless_cut_off(incoming, incoming.is_whole):
                del self._arriving[place]
                return Message(incoming.source, incoming.data())
            behind.add(incoming.source)
        lost = self._gone.missed(source)
        if lost is not None:
            raise PeerLost(lost, doing)
        return None

    def _welcome(self) -> None:
        """Lets everything that others send begin to arrive, whoever is waited for.

        A large message is not on its way before it is taken: of several senders that are taken one
        after the other, all links but one would be idle.
        """
        status = MPI.Status()
        while (part := self._probed(status)) is not None:
            theirs = (one for one in self._arriving if one.source == status.source and one.more)
            incoming = next(theirs, None)
            if incoming is None:
                incoming = Incoming(status.source)
                self._arriving.append(incoming)
            self._unless_cut_off(incoming, partial(incoming.take, part, status))
            if self._gone.is_forgotten(status.source):
                self._drop_arriving(status.source)

    def _probed(self, status: MPI.Status) -> MPI.Message | None:
        """The next part that is there. A death is told here, once."""
        try:
            return self._world.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        except MPI.Exception as error:
            if not tells_of_death(error):
                raise
            self._mourn()
            return None

    def _unless_cut_off(self, incoming: "Incoming", act: Callable[[], T]) -> T | None:
        """What an act on a message returns; None from when on its sender's death has torn it."""
        if incoming.torn:
            return None
        try:
            return act()
        except MPI.Exception as error:
            if not tells_of_death(error):
                raise
        incoming.torn = True
        self._mourn()
        return None

    def _mourn(self) -> None:
        """Learns who is gone, so that MPI goes on with the others."""
        if not self.survives:
            return
        failed = self._world.Get_failed()
        ranks = failed.Translate_ranks(None, self._world.group)
        failed.Free()
        self._gone.add(ranks)
        self._world.Ack_failed(len(ranks))

    def _reap(self) -> bool:
        """Lets go of buffers that have left. True while some have not."""
        self._mourn()
        for to in {one.to for one in self._leaving if one.to in self._gone}:
            self._undelivered.add(to)
            self._drop_leaving(to)
        self._leaving = [one for one in self._leaving if not self._has_left(one)]
        return bool(self._leaving)

    def _has_left(self, one: "Outgoing") -> bool:
        try:
            return one.request.Test()
        except MPI.Exception as error:
            if tells_of_death(error):
                return False  # `_mourn` says whose
            raise TransportError(f"MPI failed while sending to rank {one.to}: {error}") from error

    def _drop_leaving(self, to: int) -> None:
        self._left_behind += [one for one in self._leaving if one.to == to]
        self._leaving = [one for one in self._leaving if one.to != to]

    def _drop_arriving(self, source: int) -> None:
        self._left_behind += [one for one in self._arriving if one.source == source]
        self._arriving = [one for one in self._arriving if one.source != source]
