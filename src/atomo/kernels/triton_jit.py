"""Triton's compiler for the backends of kernels, which run on CUDA tensors.

With TRITON_INTERPRET=1 in the environment when Triton is first imported they run on the CPU
instead, slowly: so they are tested without a GPU.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

import triton

__all__ = ["EXACT", "device_code"]

# a * b + c must round twice, as it does on the CPU, or levels differ from those of other backends.
EXACT: Final = {"enable_fp_fusion": False}


def device_code(function: Callable[..., Any]) -> Any:
    """Declares a kernel, or a function that kernels call; compiled at its first launch."""
    # The tests wrap every annotated function, which Triton cannot read.
    return triton.jit(inspect.unwrap(function))
