"""Dispatch of a kernel to one of its backends, by the device of the tensor and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch

__all__ = ["backend_for", "copies_half"]

# By kind of device, best first. A kernel uses the first that it has and this machine can import.
PREFERRED: Final = {"cpu": ("cpu", "reference"), "cuda": ("cuda", "reference")}
ANY_DEVICE: Final = ("reference",)


def backend_for(kernel: str, *backends: str) -> Callable[[torch.Tensor], Any]:
    """Returns the dispatcher of a kernel, which maps a tensor to the module for its device.

    Args:
        kernel: the package of the kernel; each backend is a module in it.
        backends: the names of the kernel's backends, "reference" among them.
    """

    def backend(tensor: torch.Tensor) -> Any:
        return module_for(kernel, backends, tensor.device.type)

    return backend


def copies_half(device: torch.device) -> bool:
    """Returns True if the backends for a device copy half-precision tensors to float32.

    numba has no bfloat16. A caller with a float32 buffer at hand converts there and saves the copy.
    """
    return PREFERRED.get(device.type, ANY_DEVICE)[0] == "cpu"


@cache
def module_for(kernel: str, backends: tuple[str, ...], device: str) -> Any:
    """Returns the module of a kernel that serves a kind of device."""
    for backend in PREFERRED.get(device, ANY_DEVICE):
        # Only CUDA builds of PyTorch include Triton. The import is here because it is slow.
        if backend in backends and (backend != "cuda" or find_spec("triton")):
            return import_module(f"{kernel}.{backend}")
    raise LookupError(f"{kernel} has no backend for tensors on {device}; it has {backends}")
