"""The transport contract: frames from rank to rank, in order between any two ranks, each wait with
a deadline.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from atomo.errors import TransportError
from atomo.transports.device_channel import DeviceChannel
from atomo.wire import Bytes

__all__ = [
    "FOREVER_S",
    "MAX_CHUNK_BYTES",
    "MAX_MESSAGE_BYTES",
    "Message",
    "Transport",
    "check_message",
]

FOREVER_S: Final = 1e9
MAX_MESSAGE_BYTES: Final = 2**40 - 1  # a greater length is a damaged one
MAX_CHUNK_BYTES: Final = 2**31 - 1  # MPI counts in int32; a longer message travels in parts


@dataclass(frozen=True)
class Message:
    """Bytes that arrived, and the rank that sent them."""

    source: int  # rank
    data: Bytes


class Transport(ABC):
    """Moves bytes between the ranks 0..size-1 of one job. Abstract; subclasses are final."""

    rank: int
    size: int
    local_index: int
    """Index of this rank among the ranks of this host: 0..local_size-1."""
    local_size: int
    sent_bytes: int
    """Bytes handed to `send` so far."""
    received_bytes: int
    """Bytes returned by `receive` so far."""
    fault_tolerant: bool = False
    """True if the other ranks survive the death of a rank and learn of it. If False, a death ends
    the job, and the sentences below about dead ranks do not apply."""
    revokes_waits: bool = False
    """True if a death ends every wait, for any rank, so that all ranks restart the open step. ULFM
    does the same with `MPI_Comm_revoke`."""

    @property
    def global_ranks(self) -> Sequence[int]:
        """Job ranks of this transport's ranks; frames name their sender by them."""
        return range(self.size)

    @property
    def staging(self) -> str:
        """One line on how data of a GPU travels; empty if there is nothing to tell the user."""
        return ""

    def open_device_channels(self, timeout_s: float) -> None:
        """Makes `device_channel` available here and on later duplicates, where the library allows
        it.

        Every rank calls it, or none does.

        Raises:
            DeadlineExpired: a rank does not call it.
        """
        del timeout_s

    def device_channel(self, device: torch.device) -> DeviceChannel | None:
        """Returns a channel that sends tensors of this device without a copy to the host, on all
        ranks or on none; None: tensors travel in messages.
        """
        del device
        return None

    @abstractmethod
    def send(self, to: int, data: Bytes, label: str) -> None:
        """Starts sending and returns. `data` must not change until `drain` has returned.

        Raises:
            PeerLost: rank `to` is gone.
            TransportError: there is no rank `to`, or the message exceeds `MAX_MESSAGE_BYTES`.
        """

    @abstractmethod
    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        """Waits for the next message of rank `source`, or of any rank.

        Args:
            source: rank; None: the first message of any rank.
            timeout_s: the longest wait, seconds.
            label: names the awaited message in errors.

        Raises:
            DeadlineExpired: no message arrived.
            PeerLost: the awaited rank is gone.
        """

    def wait_idle(self, source: int, label: str) -> Message:
        """Waits for the next message of rank `source` without a deadline, and sleeps between two
        polls, which leaves the core to other processes. It notices a message some hundredths of a
        second later.

        Raises:
            PeerLost: the awaited rank is gone.
        """
        return self.receive(source, FOREVER_S, label)

    @abstractmethod
    def drain(self, timeout_s: float) -> None:
        """Waits until everything sent has left.

        Raises:
            DeadlineExpired: a rank does not receive a message sent to it.
            PeerLost: a rank is gone and will not receive.
        """

    @abstractmethod
    def dup(self, timeout_s: float) -> "Transport":
        """Duplicates the transport, as `MPI_Comm_dup`: the same ranks with separate messages, for
        another thread. `drain` and `abort` of the original include the duplicate.

        Every rank makes the same number of duplicates, in the same order.

        Raises:
            DeadlineExpired: a rank does not make its duplicate.
        """

    @abstractmethod
    def abort(self, exit_code: int) -> None:
        """Ends every rank of the job, this one included."""

    def exit_rank(self, exit_code: int) -> None:
        """Ends this rank alone, without a shutdown message: the other ranks find it dead."""
        self.abort(exit_code)

    def ignore_rank(self, rank: int) -> None:
        """Ignores a dead rank from now on: waits for any rank wait for the others, its unread
        messages are dropped, and messages to it are not sent.
        """
        del rank

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        """Kills a rank that does not answer, even if it is stopped: the other ranks then see an
        ordinary death. On another host the rank dies later, or never.

        Args:
            rank: the rank to kill.
            if_stuck: kill it only if its process is stopped or blocked inside the kernel. A process
                that waits for another rank is neither.

        Returns:
            True if the kill was done or requested. The process must be known, and either run on
                this host or be covered by `set_remote_fence`.
        """
        del rank, if_stuck
        return False

    def cpu_time_s(self, rank: int) -> float | None:
        """Returns the processor time of a rank's process, seconds; None if unknown here, as on
        another host.
        """
        del rank
        return None

    def request_end(self) -> None:
        """Asks rank 0 to write a checkpoint and end the run; a signal handler may call it. Nothing
        happens where the launcher signals all ranks.
        """
        return

    def end_requested(self) -> bool:
        """Returns True if a rank has called `request_end`."""
        return False

    def set_remote_fence(self, ask: Callable[[int, int, int, bool], None]) -> None:
        """Sets the function that kills ranks on other hosts.

        Args:
            ask: takes a rank, its process number on its host, the start time of that process, and
                `if_stuck`.
        """
        del ask


def check_message(to: int, size: int, data: Bytes, label: str) -> None:
    """Checks that a message can be carried.

    Raises:
        TransportError: there is no rank `to`, or the message exceeds `MAX_MESSAGE_BYTES`.
    """
    if not 0 <= to < size:
        raise TransportError(f"sending {label} to rank {to}: ranks are 0 to {size - 1}")
    if data.size > MAX_MESSAGE_BYTES:
        raise TransportError(
            f"{label}: {data.size} bytes in one message; at most {MAX_MESSAGE_BYTES}"
        )
