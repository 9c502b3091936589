"""Some of the ranks of a job, numbered anew, as a transport of their own."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from atomo.transports.base import Message, Transport, check_message
from atomo.transports.device_lane import DeviceLane
from atomo.wire import Bytes

__all__ = ["Part"]


@final
class Part(Transport):
    """A transport among `ranks` of another, which alone may use that with each other meanwhile."""

    def __init__(self, whole: Transport, ranks: Sequence[int], *, one_host: bool) -> None:
        """A part of a job, of which this rank is one.

        Args:
            whole: connects all ranks.
            ranks: of `whole`, in the order of their new numbers.
            one_host: whether they count as one host, and not as a host each.
        """
        self._whole, self._ranks, self._one_host = whole, tuple(ranks), one_host
        self.rank, self.size = self._ranks.index(whole.rank), len(ranks)
        self.local_index, self.local_size = (self.rank, self.size) if one_host else (0, 1)

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted by the whole
        """Bytes that the whole has sent so far."""
        return self._whole.sent_bytes

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        """Bytes that the whole has received so far."""
        return self._whole.received_bytes

    def lane(self, device: torch.device) -> DeviceLane | None:
        whole = self._whole.lane(device)
        return None if whole is None else PartLane(whole, self._ranks)

    def send(self, to: int, data: Bytes, what: str) -> None:
        check_message(to, self.size, data, what)
        self._whole.send(self._ranks[to], data, what)

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        if source is None:
            message = self._whole.receive(None, timeout_s, what)
            return Message(self._ranks.index(message.source), message.data)
        place = self._ranks[source]
        told = what if place == source else f"{what} (rank {place} of all)"
        return Message(source, self._whole.receive(place, timeout_s, told).data)

    def drain(self, timeout_s: float) -> None:
        self._whole.drain(timeout_s)

    def channel(self, timeout_s: float) -> Transport:
        # All ranks of the whole make one, whichever part they are in.
        return Part(self._whole.channel(timeout_s), self._ranks, one_host=self._one_host)

    def abort(self, exit_code: int) -> None:
        self._whole.abort(exit_code)


@final
class PartLane(DeviceLane):
    """A lane among some of the ranks of another."""

    def __init__(self, whole: DeviceLane, ranks: Sequence[int]) -> None:
        self._whole, self._ranks = whole, ranks

    def send(self, to: int, values: Tensor, what: str) -> None:
        self._whole.send(self._ranks[to], values, what)

    def receive(self, source: int, values: Tensor, timeout_s: float, what: str) -> None:
        self._whole.receive(self._ranks[source], values, timeout_s, what)

    def drain(self, timeout_s: float) -> None:
        self._whole.drain(timeout_s)
