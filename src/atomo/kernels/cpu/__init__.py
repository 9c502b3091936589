"""The hot loops in numba, for tensors on the CPU: numpy arrays in, numpy arrays out, one thread."""

import inspect
from collections.abc import Callable
from typing import Any

import numba

__all__ = ["jit", "jit_sum"]


def jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop at its first call, once for all processes, and lets other threads run."""
    return compiled(loop, False)


def jit_sum(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one that only sums: its additions may be reordered, and so be vectorised.

    The last bits of a sum then depend on the processor.
    """
    return compiled(loop, {"reassoc", "contract"})


def compiled(loop: Callable[..., Any], fastmath: bool | set[str]) -> Callable[..., Any]:
    """The loop under numba."""
    plain = inspect.unwrap(loop)  # the tests wrap every annotated function, which numba cannot read
    made: Callable[..., Any] = numba.njit(cache=True, nogil=True, fastmath=fastmath)(plain)
    return made
