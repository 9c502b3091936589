"""The transport contract: frames from rank to rank, in order between any two, each wait bounded."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from atomo.errors import TransportError
from atomo.transports.device_lane import DeviceLane
from atomo.wire import Bytes

__all__ = ["AT_ONCE", "FOREVER_S", "LARGEST", "Message", "Transport", "check_message"]

FOREVER_S: Final = 1e9
LARGEST: Final = 2**40 - 1  # bytes of one message; a length beyond that is damaged
AT_ONCE: Final = 2**31 - 1  # bytes that MPI counts; of more, a message travels in parts


@dataclass(frozen=True)
class Message:
    """Bytes that arrived."""

    source: int  # rank
    data: Bytes


class Transport(ABC):
    """Moves bytes between the ranks 0..size-1 of one job. Abstract; subclasses are final."""

    rank: int
    size: int
    local_index: int
    """Which of the ranks on this host this one is: 0..local_size-1."""
    local_size: int
    sent_bytes: int
    """Bytes handed to `send` so far."""
    received_bytes: int
    """Bytes returned by `receive` so far."""
    survives: bool = False
    """Whether the death of a rank leaves the others as they are, and they hear of it. Where it does
    not, a death ends the job, and what is said of deaths below has no use."""
    interrupts: bool = False
    """Whether a death ends every wait, whoever it is for, so that all begin anew what they do."""

    @property
    def numbers(self) -> Sequence[int]:
        """What the ranks are called in frames that travel over it."""
        return range(self.size)

    @property
    def staging(self) -> str:
        """How what lies on a GPU travels, in one line; empty: nobody need know."""
        return ""

    def open_lanes(self, timeout_s: float) -> None:
        """From now on, and in channels made from now on, `lane` has what can be had.

        Every rank does so, or none.

        Raises:
            DeadlineExpired: a rank does not.
        """
        del timeout_s

    def lane(self, device: torch.device) -> DeviceLane | None:
        """What takes tensors on such a device as they are, alike on all ranks; None: they travel
        in messages, by way of their hosts.
        """
        del device
        return None

    @abstractmethod
    def send(self, to: int, data: Bytes, what: str) -> None:
        """Starts sending and returns; `data` must not change until `drain` returned.

        Raises:
            PeerLost: rank `to` is gone.
            TransportError: there is no rank `to`, or it is more than `LARGEST` bytes.
        """

    @abstractmethod
    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        """Waits for the next message of rank `source`, or of any.

        Args:
            source: rank, or None for whichever comes first.
            timeout_s: how long to wait at most, seconds.
            what: what is waited for; the error says it.

        Raises:
            DeadlineExpired: nothing came.
            PeerLost: the rank waited for is gone.
        """

    def rest(self, source: int, what: str) -> Message:
        """Waits for the next message of rank `source` for as long as it lives, and leaves the core
        to others: what comes may be noticed some hundredths of a second later.

        Raises:
            PeerLost: the rank waited for is gone.
        """
        return self.receive(source, FOREVER_S, what)

    @abstractmethod
    def drain(self, timeout_s: float) -> None:
        """Waits until everything sent has left.

        Raises:
            DeadlineExpired: somebody does not take what was sent.
            PeerLost: somebody is gone, and never will.
        """

    @abstractmethod
    def channel(self, timeout_s: float) -> "Transport":
        """Another way between the same ranks, for another thread: what it carries neither waits for
        what this one does nor mixes with it. `drain` and `abort` of this one take it along.

        Every rank makes as many, in the same order.

        Raises:
            DeadlineExpired: a rank does not.
        """

    @abstractmethod
    def abort(self, exit_code: int) -> None:
        """Ends every rank of the job, this one included."""

    def leave(self, exit_code: int) -> None:
        """Ends this rank alone, without a goodbye: the others find it gone."""
        self.abort(exit_code)

    def forget(self, rank: int) -> None:
        """Nobody misses a rank that is gone any more: who waits for any waits for the others, what
        it sent and nobody received is dropped, and so is what is sent to it.
        """
        del rank

    def fence(self, rank: int, *, if_stuck: bool = False) -> bool:
        """Kills a rank that does not answer, even if it is stopped, so that it is gone as if it had
        died. On another host it is gone some time later, or not at all.

        Args:
            rank: which.
            if_stuck: only if its process is stopped, or waits for the system: not one that waits
                for another rank.

        Returns:
            Whether it was done or asked for: its process is known, and on this host, or
            `fence_elsewhere` has said who kills it on its own.
        """
        del rank, if_stuck
        return False

    def processor_s(self, rank: int) -> float | None:
        """Processor time that the process of a rank has used so far, seconds; None: nobody here
        knows, as it is on another host.
        """
        del rank
        return None

    def fence_elsewhere(self, ask: Callable[[int, int, int, bool], None]) -> None:
        """Who kills ranks on other hosts.

        Args:
            ask: gets a rank, the number of its process on its host, when that began, and whether
                it is killed only if it is stuck.
        """
        del ask


def check_message(to: int, size: int, data: Bytes, what: str) -> None:
    """Refuses what no transport carries.

    Raises:
        TransportError: there is no rank `to`, or it is more than `LARGEST` bytes.
    """
    if not 0 <= to < size:
        raise TransportError(f"sending {what} to rank {to}: ranks are 0 to {size - 1}")
    if data.size > LARGEST:
        raise TransportError(f"{what}: {data.size} bytes in one message; at most {LARGEST}")
