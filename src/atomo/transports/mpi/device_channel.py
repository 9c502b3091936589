"""Sends of GPU tensors through a CUDA-aware MPI."""

from typing import Any, Final, Protocol, final, runtime_checkable

import torch
import xxhash
from torch import Tensor

from atomo.core.devices import module_of, uses_pinned_memory
from atomo.errors import DeadlineExpired
from atomo.transports.deadline import Deadline
from atomo.transports.device_channel import DeviceChannel
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import TranslatedErrors

__all__ = ["MpiDeviceChannel"]

TAG_COUNT: Final = 1 << 15  # tags that every MPI supports


@runtime_checkable
class World(Protocol):
    """The part of an mpi4py communicator that is used here; tests replace it, as they have no
    GPU.
    """

    rank: int

    def Isend(self, buf: Any, dest: int, tag: int) -> Any:  # noqa: N802
        """Starts a send."""

    def Irecv(self, buf: Any, source: int, tag: int) -> Any:  # noqa: N802
        """Starts a receive."""


@final
class MpiDeviceChannel(DeviceChannel):
    """A channel over a communicator of its own: a probe for frames would match these messages
    too.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: list[tuple[Any, Tensor]] = []

    def send(self, to: int, values: Tensor, label: str) -> None:
        # MPI does not know CUDA streams: without this, it would send values not yet computed.
        if uses_pinned_memory(values.device):
            module_of(values.device).current_stream(values.device).synchronize()
        with TranslatedErrors(to, f"sending {label}"):
            request = self._world.Isend([as_bytes(values), MPI.BYTE], to, tag_for(label))
        self._pending.append((request, values))

    def receive(self, source: int, values: Tensor, timeout_s: float, label: str) -> None:
        with TranslatedErrors(source, f"waiting for {label}"):
            request = self._world.Irecv([as_bytes(values), MPI.BYTE], source, tag_for(label))
            if not Deadline(timeout_s).poll(request.Test):
                raise DeadlineExpired(
                    f"rank {self._world.rank} waited {timeout_s:g} s for {label} of rank {source}; "
                    "see --timeout"
                )

    def drain(self, timeout_s: float) -> None:
        if not Deadline(timeout_s).poll(self._all_left):
            raise DeadlineExpired(
                f"rank {self._world.rank} waited {timeout_s:g} s for other ranks to receive tensors"
            )

    def _all_left(self) -> bool:
        with TranslatedErrors(None, "sending"):
            self._pending = [send for send in self._pending if not send[0].Test()]
        return not self._pending


def as_bytes(values: Tensor) -> Tensor:
    """Returns the same memory as bytes, as MPI has no bfloat16."""
    return values.detach().view(-1).view(torch.uint8)


def tag_for(label: str) -> int:
    """Hashes a message name to its MPI tag."""
    return xxhash.xxh32_intdigest(label.encode()) % TAG_COUNT
