"""Tensors on GPUs that are handed to an MPI which takes them."""

from typing import Any, Final, Protocol, final, runtime_checkable

import torch
import xxhash
from torch import Tensor

from atomo.devices import module_of, stages
from atomo.errors import DeadlineExpired
from atomo.transports.deadline import Deadline
from atomo.transports.device_lane import DeviceLane
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import Translated

__all__ = ["MpiLane"]

TAGS: Final = 1 << 15  # that every MPI has


@runtime_checkable
class World(Protocol):
    """What of a communicator of mpi4py is used here; tests stand in for it, who have no GPU."""

    rank: int

    def Isend(self, buf: Any, dest: int, tag: int) -> Any:  # noqa: N802
        """Begins to send."""

    def Irecv(self, buf: Any, source: int, tag: int) -> Any:  # noqa: N802
        """Begins to receive."""


@final
class MpiLane(DeviceLane):
    """A communicator that nobody else uses: whoever probes for frames would take what is here."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaving: list[tuple[Any, Tensor]] = []

    def send(self, to: int, values: Tensor, what: str) -> None:
        # MPI knows nothing of streams: what is yet to be computed would not be sent.
        if stages(values.device):
            module_of(values.device).current_stream(values.device).synchronize()
        with Translated(to, f"sending {what}"):
            request = self._world.Isend([as_bytes(values), MPI.BYTE], to, tag_of(what))
        self._leaving.append((request, values))

    def receive(self, source: int, values: Tensor, timeout_s: float, what: str) -> None:
        with Translated(source, f"waiting for {what}"):
            request = self._world.Irecv([as_bytes(values), MPI.BYTE], source, tag_of(what))
            if not Deadline(timeout_s).poll(request.Test):
                raise DeadlineExpired(
                    f"rank {self._world.rank} waited {timeout_s:g} s for {what} of rank {source}; "
                    "see --timeout"
                )

    def drain(self, timeout_s: float) -> None:
        if not Deadline(timeout_s).poll(self._all_left):
            raise DeadlineExpired(
                f"rank {self._world.rank} waited {timeout_s:g} s for others to take what was sent"
            )

    def _all_left(self) -> bool:
        with Translated(None, "sending"):
            self._leaving = [one for one in self._leaving if not one[0].Test()]
        return not self._leaving


def as_bytes(values: Tensor) -> Tensor:
    """The same memory as bytes, since MPI has no bfloat16."""
    return values.detach().view(-1).view(torch.uint8)


def tag_of(what: str) -> int:
    """What tells messages of one name from those of another."""
    return xxhash.xxh32_intdigest(what.encode()) % TAGS
