"""A rank of an MPI job.

No call blocks inside MPI: every operation is started, then tested until its deadline, because a
rank inside a blocking call can neither report the awaited message nor be interrupted.
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
from atomo.transports.base import FOREVER_S, MAX_CHUNK_BYTES, Message, Transport, check_message
from atomo.transports.dead_peers import DeadPeers
from atomo.transports.deadline import Deadline
from atomo.transports.mpi.device_channel import MpiDeviceChannel
from atomo.transports.mpi.device_memory import is_cuda_aware, staging
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import (
    LAST_PART,
    MORE_PARTS,
    Incoming,
    Outgoing,
    TranslatedErrors,
    is_peer_failure,
)
from atomo.transports.processes import ProcessId, cpu_time_s, is_running, is_stuck, kill
from atomo.wire import Bytes

__all__ = ["MpiTransport"]

# Bytes of one part between hosts. Over TCP, Open MPI sends a message of up to 64 kB, header
# included, as soon as the link is free. For a longer one it first asks the receiver, and the answer
# waits for everything that the link still carries in that direction: with data in both
# directions, dense gradients took 1.7 times as long.
PART_BYTES: Final = 60_000
IDLE_POLL_S: Final = 0.02  # between two polls of a rank that idles; lower => a busier core
T = TypeVar("T")


@final
class MpiTransport(Transport):
    """One rank of an MPI job."""

    def __init__(
        self,
        world: MPI.Intracomm,
        here: Sequence[int],
        processes: Sequence[ProcessId] | None = None,
    ) -> None:
        """Creates a rank.

        Args:
            world: all ranks of the job; a communicator for this transport alone.
            here: the ranks on this host, in order.
            processes: the process of each rank, as numbered on its host; None: a death ends the
                job.
        """
        self._world, self._host_ranks, self._processes = world, here, processes
        self.rank, self.size = world.rank, world.size
        self.local_index, self.local_size = here.index(world.rank), len(here)
        self.fault_tolerant = processes is not None
        # Ranks in containers may share the host's name but not its process numbers.
        self._local_processes = {
            rank for rank in here if processes is not None and is_running(processes[rank])
        }
        self._remote_fence: Callable[[int, int, int, bool], None] | None = None
        self._dups: list[MpiTransport] = []
        self._device_channel: MpiDeviceChannel | None = None
        self.sent_bytes = self.received_bytes = 0
        self._pending: list[Outgoing] = []
        self._incoming: list[Incoming] = []  # in the order of their first parts
        self._dead = DeadPeers()
        self._undelivered: set[int] = set()  # ranks to which a message never arrives
        # Buffers that MPI may still use: it does not report when it is done with dead ranks.
        self._abandoned: list[Outgoing | Incoming] = []

    @property
    def staging(self) -> str:
        vendor, version = MPI.get_vendor()
        library = f"{vendor} {'.'.join(map(str, version))}"
        return staging(is_cuda_aware(), library, direct=self._device_channel is not None)

    def open_device_channels(self, timeout_s: float) -> None:
        # On all ranks or on none: hosts may have different libraries.
        aware_here, all_aware = (
            np.array([aware], np.uint8) for aware in (is_cuda_aware() is True, False)
        )
        request = self._world.Iallreduce(aware_here, all_aware, MPI.MIN)
        if not Deadline(timeout_s).poll(request.Test):
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for all ranks to report their MPI library"
            )
        if all_aware[0]:
            self._device_channel = MpiDeviceChannel(self._duplicate(timeout_s))

    def device_channel(self, device: torch.device) -> MpiDeviceChannel | None:
        return self._device_channel if device.type == "cuda" else None

    def send(self, to: int, data: Bytes, label: str) -> None:
        check_message(to, self.size, data, label)
        if self._dead.is_ignored(to):
            return
        self._reap_sends()
        if to in self._dead:
            raise PeerLost(to, f"sending {label}")
        size = MAX_CHUNK_BYTES if to in self._host_ranks else PART_BYTES
        last = max(0, data.size - 1) // size
        with TranslatedErrors(to, f"sending {label}"):
            for place in range(last + 1):
                part = data[place * size : (place + 1) * size]
                tag = LAST_PART if place == last else MORE_PARTS
                self._pending.append(
                    Outgoing(self._world.Isend([part, MPI.BYTE], to, tag), part, to)
                )
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        return self._receive_tensor(source, Deadline(timeout_s), timeout_s, label)

    def wait_idle(self, source: int, label: str) -> Message:
        deadline = Deadline(FOREVER_S, IDLE_POLL_S)
        return self._receive_tensor(source, deadline, FOREVER_S, label)

    def _receive_tensor(
        self, source: int | None, deadline: Deadline, timeout_s: float, label: str
    ) -> Message:
        action = f"waiting for {label}"
        with TranslatedErrors(source, action):
            message = deadline.poll(lambda: self._arrived(source, action))
        if message is None:
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for {label}; see --timeout"
            )
        self.received_bytes += message.data.size
        return message

    def drain(self, timeout_s: float) -> None:
        if not Deadline(timeout_s).poll(lambda: not self._reap_sends()):
            late = sorted({send.to for send in self._pending})
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for rank {late} to receive messages"
            )
        if self._undelivered:
            raise PeerLost(min(self._undelivered), "sending to it")
        for channel in self._dups:
            channel.drain(timeout_s)

    def dup(self, timeout_s: float) -> "MpiTransport":
        duplicate = MpiTransport(self._duplicate(timeout_s), self._host_ranks, self._processes)
        if self._device_channel is not None:
            duplicate._device_channel = MpiDeviceChannel(self._duplicate(timeout_s))
        self._dups.append(duplicate)
        return duplicate

    def _duplicate(self, timeout_s: float) -> MPI.Intracomm:
        """Duplicates the communicator."""
        world, request = self._world.Idup()
        if not Deadline(timeout_s).poll(request.Test):
            raise DeadlineExpired(
                f"rank {self.rank} waited {timeout_s:g} s for all ranks to join; see --timeout"
            )
        return world

    def abort(self, exit_code: int) -> None:
        self._world.Abort(exit_code)

    def exit_rank(self, exit_code: int) -> None:
        if not self.fault_tolerant:
            self.abort(exit_code)
        sys.stdout.flush()
        sys.stderr.flush()
        # SIGKILL, since MPI reports no process that exits by itself, and without `MPI_Finalize`
        # every later one of another rank would wait for it.
        os.kill(os.getpid(), signal.SIGKILL)

    def ignore_rank(self, rank: int) -> None:
        self._dead.ignore_rank(rank)
        self._undelivered.discard(rank)
        self._abandon_receives(rank)
        self._abandon_sends(rank)

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        if self._processes is None:
            return False
        process = self._processes[rank]
        if rank in self._local_processes:
            if not if_stuck or is_stuck(process) or not is_running(process):
                kill(process)
                self._dead.add([rank])  # MPI does not report a process that exited by itself
        elif self._remote_fence is not None:
            self._remote_fence(rank, process.pid, process.started, if_stuck)
        else:
            return False
        return True

    def cpu_time_s(self, rank: int) -> float | None:
        is_local = self._processes is not None and rank in self._local_processes
        return cpu_time_s(self._processes[rank]) if self._processes and is_local else None

    def set_remote_fence(self, ask: Callable[[int, int, int, bool], None]) -> None:
        self._remote_fence = ask

    def _arrived(self, source: int | None, action: str) -> Message | None:
        """Returns the first message of a rank, or of any rank, if all its parts have arrived."""
        self._post_receives()
        earlier: set[int] = set()  # ranks with an earlier message, which no later one overtakes
        for index, incoming in enumerate(self._incoming):
            is_candidate = source in (None, incoming.source) and incoming.source not in earlier
            if is_candidate and self._unless_torn(incoming, incoming.is_whole):
                del self._incoming[index]
                return Message(incoming.source, incoming.data())
            earlier.add(incoming.source)
        lost = self._dead.dead_peer(source)
        if lost is not None:
            raise PeerLost(lost, action)
        return None

    def _post_receives(self) -> None:
        """Posts receives for everything that other ranks send, whichever rank is waited for.

        A large message starts to move only once its receive is posted: with one receive at a time,
        all links but one would be idle.
        """
        status = MPI.Status()
        while (part := self._probed(status)) is not None:
            unfinished = (i for i in self._incoming if i.source == status.source and i.more)
            incoming = next(unfinished, None)
            if incoming is None:
                incoming = Incoming(status.source)
                self._incoming.append(incoming)
            self._unless_torn(incoming, partial(incoming.take, part, status))
            if self._dead.is_ignored(status.source):
                self._abandon_receives(status.source)

    def _probed(self, status: MPI.Status) -> MPI.Message | None:
        """Returns the next part that can be received. MPI reports each death here, once."""
        try:
            return self._world.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        except MPI.Exception as error:
            if not is_peer_failure(error):
                raise
            self._ack_failures()
            return None

    def _unless_torn(self, incoming: "Incoming", act: Callable[[], T]) -> T | None:
        """Returns the result of an operation on a message; None once its sender's death has cut it
        off.
        """
        if incoming.torn:
            return None
        try:
            return act()
        except MPI.Exception as error:
            if not is_peer_failure(error):
                raise
        incoming.torn = True
        self._ack_failures()
        return None

    def _ack_failures(self) -> None:
        """Reads and acknowledges the failed ranks: without the acknowledgement, MPI fails every
        later receive from any rank.
        """
        if not self.fault_tolerant:
            return
        failed = self._world.Get_failed()
        ranks = failed.Translate_ranks(None, self._world.group)
        failed.Free()
        self._dead.add(ranks)
        self._world.Ack_failed(len(ranks))

    def _reap_sends(self) -> bool:
        """Releases the buffers of complete sends; True while some are pending."""
        self._ack_failures()
        for to in {send.to for send in self._pending if send.to in self._dead}:
            self._undelivered.add(to)
            self._abandon_sends(to)
        self._pending = [send for send in self._pending if not self._has_left(send)]
        return bool(self._pending)

    def _has_left(self, send: "Outgoing") -> bool:
        try:
            return send.request.Test()
        except MPI.Exception as error:
            if is_peer_failure(error):
                return False  # `_ack_failures` finds the rank
            raise TransportError(f"MPI failed while sending to rank {send.to}: {error}") from error

    def _abandon_sends(self, to: int) -> None:
        self._abandoned += [send for send in self._pending if send.to == to]
        self._pending = [send for send in self._pending if send.to != to]

    def _abandon_receives(self, source: int) -> None:
        self._abandoned += [i for i in self._incoming if i.source == source]
        self._incoming = [i for i in self._incoming if i.source != source]
