"""The hot loops in numba, for tensors on the CPU: numpy arrays in, numpy arrays out, one thread."""

import inspect
from collections.abc import Callable
from typing import Any

import numba

__all__ = ["jit"]


def jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop at its first call, once for all processes, and lets other threads run."""
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(
        inspect.unwrap(loop)  # the tests wrap every annotated function, which numba cannot read
    )
    return compiled
