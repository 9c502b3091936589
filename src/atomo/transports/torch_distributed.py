"""Frames over torch.distributed, for jobs started by `torchrun`, without MPI.

gloo must know the size of a message in advance, and a gloo wait that times out breaks the
connection for good. Two threads therefore serve each peer and wait without a deadline: one receives
messages into the inbox, the other completes sends. `receive` and `drain` wait for those threads,
with deadlines. As over MPI, a large message moves only once its receiver waits for something, which
bounds the memory of a busy receiver.

Threads share the inbox and the outbox, each with its own lock. A link's lock guards the order of
its sends: a length and its bytes must stay together.
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
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from atomo.core.process.error_file import record_error
from atomo.errors import ConfigError, PeerLost, TransportError
from atomo.transports.base import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    Message,
    Transport,
    check_message,
)
from atomo.transports.end_request import EndRequest
from atomo.transports.inbox import Inbox, InboxMessage
from atomo.transports.outbox import Outbox, PendingSend
from atomo.wire import Bytes

__all__ = ["TorchTransport", "connect"]

TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
UNBOUNDED: Final = timedelta(days=365)
EAGER_BYTES: Final = 2**16  # a message of at most this is received before `receive` is called
HOST_NAME_BYTES: Final = 256  # bytes of a host name
CLOSE_MARK: Final = -1  # in place of a length; an abort sends -2 - its exit code
EMPTY: Final = np.empty(0, np.uint8)
CLOSE_TIMEOUT_S: Final = 60.0  # the longest wait for other ranks at the end
ABORT_TIMEOUT_S: Final = 2.0  # the longest wait for other ranks in an abort


def connect() -> "TorchTransport":
    """Joins the job of torch.distributed that this process is in, or that torchrun started it in.

    Raises:
        ConfigError: torchrun did not start this process.
        TransportError: the other ranks cannot be reached.
    """
    started = not dist.is_initialized()
    missing = [name for name in TORCHRUN if name not in os.environ]
    if started and missing:
        raise ConfigError(
            f"torch.distributed needs {', '.join(missing)} in the environment: start the ranks "
            "by torchrun, or set them"
        )
    request: EndRequest | None = None
    try:
        if started:
            store, rank, size = join_store()
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            request = EndRequest(store)
        transport = TorchTransport(new_gloo_group(), request)
    except (RuntimeError, ValueError) as error:
        raise TransportError(f"torch.distributed does not reach the others: {error}") from error
    atexit.register(close_at_exit, transport, started)
    return transport


def join_store() -> tuple[PrefixStore, int, int]:
    """Returns the store of this start of the job, the rank, and the number of ranks.

    torchrun (2.14) keeps its store when it starts the ranks again, with the addresses of the
    earlier ones, to which gloo would connect. The ranks therefore count their starts.
    """
    store, rank, size = next(rendezvous("env://"))
    start = store.add(f"atomo/starts/{rank}", 1)
    return PrefixStore(f"atomo/start-{start}", store), rank, size


def new_gloo_group(timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Makes a gloo group of all ranks for one transport alone."""
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)  # a number for non-members; every rank is one
    return group


def close_at_exit(transport: "TorchTransport", started: bool) -> None:
    """Closes the transport at process exit: PyTorch may crash if a group is left to the
    interpreter.
    """
    if transport.close(CLOSE_TIMEOUT_S) and started and dist.is_initialized():
        dist.destroy_process_group()


@final
class TorchTransport(Transport):
    """One rank of a gloo process group that serves this transport alone."""

    def __init__(self, group: dist.ProcessGroup, request: EndRequest | None = None) -> None:
        self._request = request
        self.rank, self.size = group.rank(), group.size()
        self.local_index, self.local_size = host_rank(group)
        self.sent_bytes = self.received_bytes = 0
        self._inbox, self._outbox = Inbox(self.rank), Outbox(self.rank)
        peers = (peer for peer in range(self.size) if peer != self.rank)
        self._links = {peer: PeerLink(group, peer, self._inbox, self._outbox) for peer in peers}
        self._dups: list[TorchTransport] = []

    def send(self, to: int, data: Bytes, label: str) -> None:
        check_message(to, self.size, data, label)
        if to == self.rank:
            self._inbox.put(InboxMessage(to, data, self._outbox.add(to)))
        elif self._inbox.is_gone(to) or not self._links[to].post(data.size, data):
            raise PeerLost(to, f"sending {label}")
        self.sent_bytes += data.size

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        message = self._inbox.take(source, timeout_s, label)
        self.received_bytes += message.data.size
        return Message(message.source, message.data)

    def drain(self, timeout_s: float) -> None:
        self._outbox.drain(timeout_s)
        for channel in self._dups:
            channel.drain(timeout_s)

    def dup(self, timeout_s: float) -> "TorchTransport":
        duplicate = TorchTransport(new_gloo_group(timedelta(seconds=timeout_s)))
        self._dups.append(duplicate)
        return duplicate

    def abort(self, exit_code: int) -> None:
        posted = Outbox(self.rank)  # an outbox of its own: earlier sends may never complete
        for link in self._links.values():
            link.post(-2 - exit_code, EMPTY, posted)
        with suppress(TransportError):  # a rank that does not receive finds the connection closed
            posted.drain(ABORT_TIMEOUT_S)
        exit_now(exit_code)

    def request_end(self) -> None:
        if self._request is not None:
            self._request.make()

    def end_requested(self) -> bool:
        return self._request is not None and self._request.is_made()

    def close(self, timeout_s: float) -> bool:
        """Announces the end of this rank and waits until the others do the same, so that no rank
        takes an end for a death.

        Returns:
            True if all ranks announced their end.
        """
        end = time.monotonic() + timeout_s
        ended = [channel.close(timeout_s) for channel in self._dups]
        self._inbox.close()
        for link in self._links.values():
            link.post(CLOSE_MARK, EMPTY)
        return all([*ended, *(link.ends(end) for link in self._links.values())])


@final
class PeerLink:
    """The connection to one peer, in both directions."""

    def __init__(self, group: dist.ProcessGroup, peer: int, inbox: Inbox, outbox: Outbox) -> None:
        self._group, self._peer, self._inbox, self._outbox = group, peer, inbox, outbox
        self._lock = threading.Lock()
        self._posts: SimpleQueue[PostedSend] = SimpleQueue()
        self._threads = [self._start("from", self._listen), self._start("to", self._complete_sends)]

    def post(self, length: int, data: Bytes, outbox: Outbox | None = None) -> bool:
        """Starts sending a length and that many bytes; False if the peer is gone."""
        pending = (outbox or self._outbox).add(self._peer)
        data = np.ascontiguousarray(data)  # kept until it has left: the tensor does not own it
        parts = [torch.tensor([length]), *(split_message(as_tensor(data)) if data.size else [])]
        try:
            with self._lock:  # two threads must not interleave their lengths and bytes
                works = [dist.isend(p, group=self._group, group_dst=self._peer) for p in parts]
                self._posts.put((works, data, length, pending))
        except RuntimeError:
            pending.lose()
            self._posts.put(([], data, CLOSE_MARK, pending))  # the last send of this link
            return False
        return True

    def ends(self, end: float) -> bool:
        """Waits until the link's threads end, at the latest until `end` on the clock of
        `time.monotonic`; True if they did.
        """
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, direction: str, run: Callable[[], None]) -> threading.Thread:
        # Daemons, since some wait inside gloo for a peer that sends nothing more.
        thread = threading.Thread(target=run, name=f"{direction} rank {self._peer}", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        header = torch.empty(1, dtype=torch.int64)
        try:
            while 0 <= (length := self._receive_tensor(header)) <= MAX_MESSAGE_BYTES:
                if length > EAGER_BYTES:
                    self._inbox.wait_until_asked()
                data = np.empty(length, np.uint8)
                for part in split_message(torch.from_numpy(data)) if length else ():
                    self._receive_tensor(part)
                self._inbox.put(InboxMessage(self._peer, data))
        except (RuntimeError, MemoryError):  # gloo raises both for a closed connection
            length = MAX_MESSAGE_BYTES + 1
        if length < CLOSE_MARK:
            exit_code = -2 - length
            record_error(PeerLost(self._peer, f"ending the job with exit code {exit_code}"))
            exit_now(exit_code)
        self._inbox.lose(self._peer, length == CLOSE_MARK)

    def _receive_tensor(self, tensor: Tensor) -> int:
        work = dist.irecv(tensor, group=self._group, group_src=self._peer)
        if work is None:
            raise RuntimeError("this process is not in the group")
        work.wait(UNBOUNDED)
        return int(tensor[0])

    def _complete_sends(self) -> None:
        length = 0
        while length >= 0:
            works, _, length, pending = self._posts.get()
            try:
                for work in works:
                    if work is not None:
                        work.wait(UNBOUNDED)
                pending.complete()
            except RuntimeError:
                pending.lose()


PostedSend = tuple[list[dist.Work | None], Bytes, int, PendingSend]


def split_message(data: Tensor) -> tuple[Tensor, ...]:
    """Splits a message into pieces that gloo can send, the same at both ends."""
    return torch.split(data, MAX_CHUNK_BYTES)


def as_tensor(data: Bytes) -> Tensor:
    """Returns a tensor over the same memory. Read-only memory stays unchanged: gloo does not write
    to a send buffer.
    """
    memory = (ctypes.c_uint8 * data.size).from_address(data.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8)


def host_rank(group: dist.ProcessGroup) -> tuple[int, int]:
    """Returns the index of this rank on its host, and the number of ranks there: from torchrun,
    else from host names.
    """
    if "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    name = socket.gethostname().encode()[:HOST_NAME_BYTES].ljust(HOST_NAME_BYTES, b"\0")
    names = [torch.empty(HOST_NAME_BYTES, dtype=torch.uint8) for _ in range(group.size())]
    dist.all_gather(names, torch.tensor([*name], dtype=torch.uint8), group=group)
    same_host = [rank for rank, host_name in enumerate(names) if bytes(host_name.tolist()) == name]
    return same_host.index(group.rank()), len(same_host)


def exit_now(exit_code: int) -> None:
    """Ends this process immediately: its threads may wait inside gloo for ever."""
    sys.stderr.flush()
    os._exit(exit_code)
