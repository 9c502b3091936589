"""Frames over torch.distributed: what `torchrun` starts needs no MPI.

gloo has to know how many bytes come, and a wait of its own that expires breaks the connection for
good. So two threads serve each peer and wait without a bound: one listens, and hands what came to
an inbox; one sees sent messages off. `receive` and `drain` wait for those threads, with deadlines.
As over MPI, a large message moves once its receiver waits for something: nobody is flooded.
"""

import atexit
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Final, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from atomo.errors import ConfigError, PeerLost, TransportError
from atomo.transports.base import AT_ONCE, LARGEST, Message, Transport, check_message
from atomo.transports.inbox import Inbox, Parcel
from atomo.transports.leaving import Leaving, Outbox
from atomo.wire import Bytes

__all__ = ["TorchTransport", "connect"]

TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
UNBOUNDED: Final = timedelta(days=365)
EAGER: Final = 2**16  # bytes; what is no larger is received before anybody asks
LONGEST_NAME: Final = 256  # bytes of a host name
GOODBYE: Final = -1  # in the place of a length; an abort is -2 - its exit code
NOTHING: Final = np.empty(0, np.uint8)
FAREWELL_S: Final = 60.0  # the longest wait for others at the end
LAST_WORD_S: Final = 2.0  # the same in an abort


def connect() -> "TorchTransport":
    """Joins the job of torch.distributed that this process is in, or that torchrun started it in.

    Raises:
        ConfigError: torchrun did not start it.
        TransportError: the others cannot be reached.
    """
    started = not dist.is_initialized()
    missing = [name for name in TORCHRUN if name not in os.environ]
    if started and missing:
        raise ConfigError(
            f"torch.distributed needs {', '.join(missing)} in the environment: start the ranks "
            "by torchrun, or set them"
        )
    try:
        if started:
            dist.init_process_group("gloo")
        transport = TorchTransport(own_group())
    except (RuntimeError, ValueError) as error:
        raise TransportError(f"torch.distributed does not reach the others: {error}") from error
    atexit.register(leave, transport, started)
    return transport


def own_group(timeout: timedelta | None = None) -> dist.ProcessGroup:
    """A group over gloo of all ranks, which nobody else uses."""
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)  # a number for who is no member: all are
    return group


def leave(transport: "TorchTransport", started: bool) -> None:
    """What a process does at its end: PyTorch may crash over a group that is left to chance."""
    if transport.close(FAREWELL_S) and started and dist.is_initialized():
        dist.destroy_process_group()


@final
class TorchTransport(Transport):
    """One rank of a process group over gloo, which nobody else uses."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.local_index, self.local_size = place_on_host(group)
        self.sent_bytes = self.received_bytes = 0
        self._inbox, self._outbox = Inbox(self.rank), Outbox(self.rank)
        peers = (peer for peer in range(self.size) if peer != self.rank)
        self._links = {peer: Link(group, peer, self._inbox, self._outbox) for peer in peers}
        self._channels: list[TorchTransport] = []

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        if to == self.rank:
            self._inbox.put(Parcel(to, data, self._outbox.add(to)))
        elif self._inbox.is_gone(to) or not self._links[to].post(data.size, data):
            raise PeerLost(to, f"sending {what}")
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        parcel = self._inbox.take(source, timeout_s, what)
        self.received_bytes += parcel.data.size
        return Message(parcel.source, parcel.data)

    def drain(self, timeout_s: float) -> None:
        self._outbox.drain(timeout_s)
        for channel in self._channels:
            channel.drain(timeout_s)

    def channel(self, timeout_s: float) -> "TorchTransport":
        made = TorchTransport(own_group(timedelta(seconds=timeout_s)))
        self._channels.append(made)
        return made

    def abort(self, exit_code: int) -> None:
        posted = Outbox(self.rank)  # apart: what was sent before may never leave
        for link in self._links.values():
            link.post(-2 - exit_code, NOTHING, posted)
        with suppress(TransportError):  # who does not listen finds the connection closed
            posted.drain(LAST_WORD_S)
        leave_at_once(exit_code)

    def close(self, timeout_s: float) -> bool:
        """Says goodbye and waits until the others do, so that no end is taken for a loss.

        Returns:
            Whether all did.
        """
        end = time.monotonic() + timeout_s
        ended = [channel.close(timeout_s) for channel in self._channels]
        self._inbox.close()
        for link in self._links.values():
            link.post(GOODBYE, NOTHING)
        return all([*ended, *(link.ends(end) for link in self._links.values())])


@final
class Link:
    """The way to one peer and back."""

    def __init__(self, group: dist.ProcessGroup, peer: int, inbox: Inbox, outbox: Outbox) -> None:
        self._group, self._peer, self._inbox, self._outbox = group, peer, inbox, outbox
        self._lock = threading.Lock()
        self._posted: SimpleQueue[Posted] = SimpleQueue()
        self._threads = [self._start("from", self._listen), self._start("to", self._see_off)]

    def post(self, length: int, data: Bytes, outbox: Outbox | None = None) -> bool:
        """Starts sending a length and that many bytes. False: the peer is gone."""
        leaving = (outbox or self._outbox).add(self._peer)
        data = np.ascontiguousarray(data)  # kept until it has left: the tensor does not own it
        parts = [torch.tensor([length]), *(in_parts(seen_by_torch(data)) if data.size else [])]
        try:
            with self._lock:  # lengths and bytes of two threads must not mix
                works = [dist.isend(p, group=self._group, group_dst=self._peer) for p in parts]
                self._posted.put((works, data, length, leaving))
        except RuntimeError:
            leaving.lose()
            self._posted.put(([], data, GOODBYE, leaving))  # the last: nothing leaves any more
            return False
        return True

    def ends(self, end: float) -> bool:
        """Whether its threads are over by then, on the clock of `time.monotonic`."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, way: str, run: Callable[[], None]) -> threading.Thread:
        # Daemons, since some wait inside gloo for a peer that says nothing more.
        thread = threading.Thread(target=run, name=f"{way} rank {self._peer}", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        header = torch.empty(1, dtype=torch.int64)
        try:
            while 0 <= (length := self._received(header)) <= LARGEST:
                if length > EAGER:
                    self._inbox.wait_until_asked()
                data = np.empty(length, np.uint8)
                for part in in_parts(torch.from_numpy(data)) if length else ():
                    self._received(part)
                self._inbox.put(Parcel(self._peer, data))
        except (RuntimeError, MemoryError):  # gloo's, for a connection that is no more
            length = LARGEST + 1
        if length < GOODBYE:
            leave_at_once(-2 - length)
        self._inbox.lose(self._peer, length == GOODBYE)

    def _received(self, tensor: Tensor) -> int:
        work = dist.irecv(tensor, group=self._group, group_src=self._peer)
        if work is None:
            raise RuntimeError("this process is not in the group")
        work.wait(UNBOUNDED)
        return int(tensor[0])

    def _see_off(self) -> None:
        length = 0
        while length >= 0:
            works, _, length, leaving = self._posted.get()
            try:
                for work in works:
                    if work is not None:
                        work.wait(UNBOUNDED)
                leaving.left()
            except RuntimeError:
                leaving.lose()


Posted = tuple[list[dist.Work | None], Bytes, int, Leaving]


def in_parts(data: Tensor) -> tuple[Tensor, ...]:
    """A message as the library is handed it, which both ends divide alike."""
    return torch.split(data, AT_ONCE)


def seen_by_torch(data: Bytes) -> Tensor:
    """The same memory as a tensor. What may only be read is only read: gloo writes to no sender."""
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8)


def place_on_host(group: dist.ProcessGroup) -> tuple[int, int]:
    """Which of the ranks on this host this one is, and of how many: as torchrun says, or by the
    names of hosts.
    """
    if "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    name = socket.gethostname().encode()[:LONGEST_NAME].ljust(LONGEST_NAME, b"\0")
    names = [torch.empty(LONGEST_NAME, dtype=torch.uint8) for _ in range(group.size())]
    dist.all_gather(names, torch.tensor([*name], dtype=torch.uint8), group=group)
    here = [rank for rank, other in enumerate(names) if bytes(other.tolist()) == name]
    return here.index(group.rank()), len(here)


def leave_at_once(exit_code: int) -> None:
    """Ends this process, whatever its threads do: they may wait inside gloo for ever."""
    sys.stderr.flush()
    os._exit(exit_code)
