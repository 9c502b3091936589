"""Which way a kernel goes: by the device of the tensor that it works on, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch

__all__ = ["ways_of", "widens"]

# The first that the idea offers and this machine can import.
PREFERRED: Final = {"cpu": ("numba", "torch"), "cuda": ("triton", "torch")}
ANY_DEVICE: Final = ("torch",)


def ways_of(idea: str, *offered: str) -> Callable[[torch.Tensor], Any]:
    """The `backend` of an idea: from a tensor to the module that serves its device.

    Args:
        idea: the package of the idea; way `w` is its module `w_way`.
        offered: which ways it has, "torch" among them.
    """

    def backend(tensor: torch.Tensor) -> Any:
        return way_for(idea, offered, tensor.device.type)

    return backend


def widens(device: torch.device) -> bool:
    """Whether the ways that serve a device make a float32 copy of what is in half precision.

    numba knows no bfloat16: who has room for float32 anyway spares it that copy.
    """
    return PREFERRED.get(device.type, ANY_DEVICE)[0] == "numba"


@cache
def way_for(idea: str, offered: tuple[str, ...], device: str) -> Any:
    """The module of an idea that serves a kind of device."""
    for way in PREFERRED.get(device, ANY_DEVICE):
        # Triton comes with PyTorch's builds for CUDA alone. Imported here: it is slow to load.
        if way in offered and (way != "triton" or find_spec("triton")):
            return import_module(f"{idea}.{way}_way")
    raise LookupError(f"{idea} has no way for tensors on {device}; it offers {offered}")
