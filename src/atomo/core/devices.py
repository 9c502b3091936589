"""Copies between a device and its host with a minimum of waits for the device.

A plain copy, in either direction, waits for all earlier work of the device, once for each tensor. A
copy from or to pinned memory is work on the device's stream instead: a copy to the device needs no
wait, and all copies to the host need one. PyTorch's allocator caches pinned memory and reuses it
after the device has finished with it, so that the next step's staging takes no new memory.
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
"""The types of devices with asynchronous copies from and to pinned memory."""


def uses_pinned_memory(device: torch.device) -> bool:
    """True if copies between a device and pinned memory are asynchronous."""
    return device.type in STAGED


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the tensor on a device; a copy from the host does not wait for the device.

    Args:
        tensor: on any device; returned unchanged if it is on `device`.
        device: the target; work on its current stream sees the copy.
    """
    if tensor.device.type == "cpu" and uses_pinned_memory(device):
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors on the CPU, with one wait for all; tensors on the CPU are not copied.

    Args:
        tensors: on the CPU or on one device, computed on its current stream.
    """
    away = {tensor.device for tensor in tensors if uses_pinned_memory(tensor.device)}
    if not away:
        return [tensor.cpu() for tensor in tensors]
    copies = [start_copy(tensor) for tensor in tensors]
    for device in away:
        module_of(device).current_stream(device).synchronize()
    return copies


def start_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Starts a copy to pinned memory of the host, and returns it before it is complete."""
    if not uses_pinned_memory(tensor.device):
        return tensor.cpu()
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return room.copy_(tensor, non_blocking=True)


def module_of(device: torch.device) -> Any:
    """Returns PyTorch's module of a device type, with its streams and events."""
    return torch.get_device_module(device)


@final
class AsyncScalars:
    """Scalars that a device computes, copied to the host while the device continues."""

    def __init__(self, *numbers: torch.Tensor) -> None:
        """Starts the copy.

        Args:
            numbers: scalars on one device; its current stream computes the last of them.
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
        """Returns the numbers; waits for work up to their copy, and not for later work."""
        if self._here is not None:
            self._here.synchronize()
        numbers: list[float] = self._found.tolist()
        return numbers


@final
class SideStreams:
    """A side stream of each device, for work that may overlap its current stream."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def after_current_stream(
        self, device: torch.device
    ) -> Callable[[], AbstractContextManager[None]]:
        """Returns a context factory: its block computes on the side stream, after all work
        submitted to this device before the call.

        Blocks may run in other threads, in any number: they follow each other on the stream in the
        order of their start. On the CPU the context does nothing.
        """
        if device.type == "cpu":
            return nullcontext
        module = module_of(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        stream, here = self._streams[device], module.current_stream(device).record_event()

        @contextmanager
        def beside() -> Iterator[None]:
            # Selects this device too: another thread may have another current device.
            with module.stream(stream):
                stream.wait_event(here)
                yield

        return beside

    def join(self) -> None:
        """Makes later work of the current streams wait for the side streams."""
        for device, stream in self._streams.items():
            module_of(device).current_stream(device).wait_stream(stream)
