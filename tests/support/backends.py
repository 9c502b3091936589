"""Backends of kernels, for tests that hold all of them to the same contract."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atomo import kernels

NAMES = ("cpu", "reference")
TRITON = frozenset(path.parent.name for path in Path(kernels.__file__).parent.glob("*/cuda.py"))


@dataclass(frozen=True)
class Backend:
    """The functions of a backend for tensors on the CPU, on whatever device the backend itself
    runs.
    """

    kernel: str
    name: str

    @property
    def device(self) -> str:
        """The device that runs it on this machine."""
        return "cuda" if self.name != "cpu" and torch.cuda.is_available() else "cpu"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(import_module(f"atomo.kernels.{self.kernel}.{self.name}"), name)

        def placed(*arguments: Any) -> Any:
            """Copies the arguments to the device, and copies in-place changes back."""
            moved = [a.to(self.device) if isinstance(a, Tensor) else a for a in arguments]
            result = function(*moved)
            for before, after in zip(arguments, moved, strict=True):
                if isinstance(before, Tensor) and after is not before:
                    before.copy_(after)
            return on_cpu(result)

        return placed

    def __str__(self) -> str:
        return self.name


def on_cpu(result: Any) -> Any:
    """Returns a result with its tensors on the CPU."""
    if isinstance(result, tuple):
        return tuple(on_cpu(part) for part in result)
    return result.cpu() if isinstance(result, Tensor) else result


def every_backend(kernel: str, interpreted: bool = True) -> pytest.MarkDecorator:
    """Runs a test once for each backend of a kernel, as the argument `backend`.

    Args:
        kernel: the folder of the kernel.
        interpreted: True to run the Triton backend in Triton's slow interpreter as well.
    """
    cases = [
        pytest.param(backend, marks=() if interpreted else gpu_only(backend))
        for backend in backends(kernel)
    ]
    return pytest.mark.parametrize("backend", cases, ids=str)


def gpu_only(backend: Backend) -> list[pytest.MarkDecorator]:
    """Returns the mark that skips the Triton backend on a machine without a GPU."""
    skips = backend.name == "cuda" and not torch.cuda.is_available()
    reason = "takes long in Triton's interpreter, where a smaller test stands for it: needs a GPU"
    return [pytest.mark.skip(reason=reason)] if skips else []


def backends(kernel: str, interpreted: bool = True) -> list[Backend]:
    """Returns all backends of a kernel, without the interpreted one on request."""
    runs = kernel in TRITON and (interpreted or torch.cuda.is_available())
    names = (*NAMES, "cuda") if runs else NAMES
    return [Backend(kernel, name) for name in names]
