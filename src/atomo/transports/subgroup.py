"""A subgroup of the ranks of a job, renumbered, as a transport."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from atomo.transports.base import Message, Transport, check_message
from atomo.transports.device_channel import DeviceChannel
from atomo.wire import Bytes

__all__ = ["Subgroup"]


@final
class Subgroup(Transport):
    """A transport among some `ranks` of another, as after `MPI_Comm_split`. Only the subgroup uses
    the links between these ranks meanwhile.
    """

    def __init__(self, whole: Transport, ranks: Sequence[int], *, one_host: bool) -> None:
        """Creates a subgroup that contains this rank.

        Args:
            whole: connects all ranks.
            ranks: of `whole`, in the order of their new numbers.
            one_host: True if the ranks count as one host; False if each counts as a host of its
                own.
        """
        self._whole, self._ranks, self._one_host = whole, tuple(ranks), one_host
        self.rank, self.size = self._ranks.index(whole.rank), len(ranks)
        self.local_index, self.local_size = (self.rank, self.size) if one_host else (0, 1)

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted by the whole
        """Bytes that the whole transport has sent so far."""
        return self._whole.sent_bytes

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        """Bytes that the whole transport has received so far."""
        return self._whole.received_bytes

    def device_channel(self, device: torch.device) -> DeviceChannel | None:
        whole = self._whole.device_channel(device)
        return None if whole is None else SubgroupDeviceChannel(whole, self._ranks)

    def send(self, to: int, data: Bytes, label: str) -> None:
        check_message(to, self.size, data, label)
        self._whole.send(self._ranks[to], data, label)

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        if source is None:
            message = self._whole.receive(None, timeout_s, label)
            return Message(self._ranks.index(message.source), message.data)
        rank = self._ranks[source]
        job_label = label if rank == source else f"{label} (rank {rank} of all)"
        return Message(source, self._whole.receive(rank, timeout_s, job_label).data)

    def drain(self, timeout_s: float) -> None:
        self._whole.drain(timeout_s)

    def dup(self, timeout_s: float) -> Transport:
        # All ranks of the whole transport make one, whichever subgroup they are in.
        return Subgroup(self._whole.dup(timeout_s), self._ranks, one_host=self._one_host)

    def abort(self, exit_code: int) -> None:
        self._whole.abort(exit_code)


@final
class SubgroupDeviceChannel(DeviceChannel):
    """A device channel among some of the ranks of another."""

    def __init__(self, whole: DeviceChannel, ranks: Sequence[int]) -> None:
        self._whole, self._ranks = whole, ranks

    def send(self, to: int, values: Tensor, label: str) -> None:
        self._whole.send(self._ranks[to], values, label)

    def receive(self, source: int, values: Tensor, timeout_s: float, label: str) -> None:
        self._whole.receive(self._ranks[source], values, timeout_s, label)

    def drain(self, timeout_s: float) -> None:
        self._whole.drain(timeout_s)
