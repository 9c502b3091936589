"""Every way of a kernel, for tests that hold all of them to the same promises."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atomo import kernels

NAMES = ("numba", "torch")
TRITON = frozenset(
    path.parent.name for path in Path(kernels.__file__).parent.glob("*/triton_way.py")
)


@dataclass(frozen=True)
class Way:
    """The functions of a way, for tensors on the CPU wherever it works itself."""

    idea: str
    name: str

    @property
    def device(self) -> str:
        """Where this machine runs it."""
        return "cuda" if self.name != "numba" and torch.cuda.is_available() else "cpu"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(import_module(f"atomo.kernels.{self.idea}.{self.name}_way"), name)

        def placed(*arguments: Any) -> Any:
            """Lends the arguments to the device, and takes back what it did to them."""
            there = [a.to(self.device) if isinstance(a, Tensor) else a for a in arguments]
            result = function(*there)
            for before, after in zip(arguments, there, strict=True):
                if isinstance(before, Tensor) and after is not before:
                    before.copy_(after)
            return here(result)

        return placed

    def __str__(self) -> str:
        return self.name


def here(result: Any) -> Any:
    """Returns a result with its tensors on the CPU."""
    if isinstance(result, tuple):
        return tuple(here(part) for part in result)
    return result.cpu() if isinstance(result, Tensor) else result


def every_way(idea: str, interpreted: bool = True) -> pytest.MarkDecorator:
    """Runs a test once for each way of an idea, as its argument `way`.

    Args:
        idea: the folder of the kernel.
        interpreted: whether Triton's way is to run in its interpreter too, which is slow.
    """
    cases = [pytest.param(way, marks=() if interpreted else on_gpu(way)) for way in ways(idea)]
    return pytest.mark.parametrize("way", cases, ids=str)


def on_gpu(way: Way) -> list[pytest.MarkDecorator]:
    """What leaves out Triton's way where there is no GPU."""
    without = way.name == "triton" and not torch.cuda.is_available()
    reason = "takes long in Triton's interpreter, where a smaller test stands for it: needs a GPU"
    return [pytest.mark.skip(reason=reason)] if without else []


def ways(idea: str, interpreted: bool = True) -> list[Way]:
    """Returns all of an idea, or all but one that would run in Triton's interpreter."""
    runs = idea in TRITON and (interpreted or torch.cuda.is_available())
    names = (*NAMES, "triton") if runs else NAMES
    return [Way(idea, name) for name in names]
