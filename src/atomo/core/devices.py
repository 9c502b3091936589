"""Between the memory of a device and its host's, with as few waits for the device as there can be.

A plain copy waits until the device has done all that it was given before, either way, and one after
another for each tensor. From and to pinned memory it takes its turn on the device's stream instead:
what goes there is not waited for at all, and what comes back is waited for once. PyTorch keeps what
was pinned and lends it again once the device is done with it, so that the next step's staging takes
no new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, final

import torch

__all__ = [
    "STAGED",
    "AsyncScalars",
    "SideStreams",
    "module_of",
    "to_device",
    "to_host",
    "uses_pinned_memory",
]

STAGED: Final = {"cuda"}
"""The kinds of devices whose copies pinned memory spares a wait."""


def uses_pinned_memory(device: torch.device) -> bool:
    """True if copies between a device and pinned memory spare a wait."""
    return device.type in STAGED


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the tensor on a device; from the host without waiting for what that has still to do.

    Args:
        tensor: on any device; itself where it is there already.
        device: where it is to be. What is computed there on the current stream finds it.
    """
    if tensor.device.type == "cpu" and uses_pinned_memory(device):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors on the CPU, with one wait for all; those that are there as they are.

    Args:
        tensors: on the CPU and on one device besides, made on its current stream.
    """
    away = {tensor.device for tensor in tensors if uses_pinned_memory(tensor.device)}
    if not away:
        return [tensor.cpu() for tensor in tensors]
    copies = [start_copy(tensor) for tensor in tensors]
    for device in away:
        module_of(device).current_stream(device).synchronize()
    return copies


def start_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy on the host that is on its way, to pinned memory."""
    if not uses_pinned_memory(tensor.device):
        return tensor.cpu()
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return room.copy_(tensor, non_blocking=True)


def module_of(device: torch.device) -> Any:
    """Returns PyTorch's module of a kind of device: its streams and events."""
    return torch.get_device_module(device)


@final
class AsyncScalars:
    """Numbers that a device computes, on their way to the host while it computes on."""

    def __init__(self, *numbers: torch.Tensor) -> None:
        """Begins to copy them.

        Args:
            numbers: scalars on one device, of which the current stream makes the last.
        """
        self._here: Any = None
        self._found = torch.empty(0)
        if not numbers:
            return
        joined = torch.stack([number.detach().double() for number in numbers])
        self._found = start_copy(joined)
        if uses_pinned_memory(joined.device):
            self._here = module_of(joined.device).current_stream(joined.device).record_event()

    def values(self) -> list[float]:
        """Returns the numbers; waits for what was computed up to them, and for nothing that came
        later.
        """
        if self._here is not None:
            self._here.synchronize()
        numbers: list[float] = self._found.tolist()
        return numbers


@final
class SideStreams:
    """A stream of each device beside the one on which it computes, for what may overlap that."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def after_current_stream(
        self, device: torch.device
    ) -> Callable[[], AbstractContextManager[None]]:
        """Returns a context factory: its block computes on the side stream, after all work
        submitted to this device before the call.

        The block may run in another thread, and there are as many as one likes: they follow each
        other on the stream in the order in which they begin. On the CPU it runs as any other.
        """
        if device.type == "cpu":
            return nullcontext
        module = module_of(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        stream, here = self._streams[device], module.current_stream(device).record_event()

        @contextmanager
        def beside() -> Iterator[None]:
            with module.stream(stream):  # and on this device, which another thread need not be at
                stream.wait_event(here)
                yield

        return beside

    def join(self) -> None:
        """Has what is computed here from now on follow what was computed beside."""
        for device, stream in self._streams.items():
            module_of(device).current_stream(device).wait_stream(stream)
