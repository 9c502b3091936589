"""Loops compiled by numba: numpy arrays in, numpy arrays out, one thread."""

import inspect
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from platform import machine
from types import FunctionType
from typing import Any, final

__all__ = ["from_half_bits", "has_halves", "jit", "jit_sum", "to_half_bits", "trailing_zeros"]


def jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop at its first call, once for all processes, and lets other threads run."""
    return Loop(loop, False)


def jit_sum(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop that only sums: additions may be reordered, and so vectorised.

    The last bits of a sum then depend on the processor.
    """
    return Loop(loop, {"reassoc", "contract"})


class Lazy(ABC):
    """Numba function that is compiled at its first call.

    The import of numba takes a while, and a process without such calls does not need it. The first
    call replaces every lazy function that its module knows by the compiled function, because
    compiled code can only call compiled functions.
    """

    module: dict[str, Any]
    """The names that belong to it."""

    @cached_property
    @abstractmethod
    def compiled(self) -> Callable[..., Any]:
        """The function that numba compiled."""


@final
class Loop(Lazy):
    """A loop that is compiled when it is first called."""

    def __init__(self, loop: Callable[..., Any], fastmath: bool | set[str]) -> None:
        # The tests wrap every annotated function, which numba cannot read.
        self._plain: FunctionType = inspect.unwrap(loop)
        self._fastmath = fastmath
        self.module = self._plain.__globals__

    def __call__(self, *arguments: Any) -> Any:
        put_in_place(self.module)
        return self.compiled(*arguments)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        try:
            return self._make(cache=True)
        except RuntimeError:  # neither the source nor the home folder is writable
            pass
        try:
            return self._make(cache=own_cache())
        except (RuntimeError, OSError):
            return self._make(cache=False)

    def _make(self, cache: bool) -> Callable[..., Any]:
        import numba

        make = numba.njit(cache=cache, nogil=True, fastmath=self._fastmath)
        made: Callable[..., Any] = make(self._plain)
        return made


def own_cache() -> bool:
    """Sets numba's cache to a temporary folder that belongs to this user alone.

    Files of the cache are executed, so that no other user may be able to write there.
    """
    import numba

    folder = Path(tempfile.gettempdir()) / f"atomo-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.geteuid():
        return False
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return True


@final
class Instruction(Lazy):
    """Something that processors do and numba has no name for: one argument, one result."""

    def __init__(
        self, name: str, argument: str, result: str, build: Callable[[Any, Any, Any], Any]
    ) -> None:
        """Builds an instruction.

        Args:
            name: in the generated code.
            argument: its type, as numba calls it.
            result: the same of the result.
            build: from LLVM's types, a builder and the argument to the result.
        """
        self.module = {}
        self._name, self._types, self._build = name, (argument, result), build

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba import types
        from numba.extending import intrinsic

        argument, result = (getattr(types, kind) for kind in self._types)

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return self._build(ir, builder, arguments[0])

        def typed(context: Any, value: Any) -> Any:
            return result(argument), build

        typed.__name__ = self._name
        made: Callable[..., Any] = intrinsic(typed)
        return made


def count_trailing_zeros(ir: Any, builder: Any, word: Any) -> Any:
    return builder.cttz(word, ir.Constant(ir.IntType(1), 0))


def round_to_half(ir: Any, builder: Any, number: Any) -> Any:
    return builder.bitcast(builder.fptrunc(number, ir.HalfType()), ir.IntType(16))


def widen_half(ir: Any, builder: Any, bits: Any) -> Any:
    return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())


trailing_zeros: Any = Instruction("trailing_zeros", "uint64", "int64", count_trailing_zeros)
"""The zeros below the lowest one of a 64-bit word; 64 of a zero."""
to_half_bits: Any = Instruction("to_half_bits", "float32", "uint16", round_to_half)
"""The bits of the half nearest to a float32, of two of the even one; where there are halves."""
from_half_bits: Any = Instruction("from_half_bits", "uint16", "float32", widen_half)
"""The float32 that a half is, given its bits; where there are halves."""


@cache
def has_halves() -> bool:
    """Returns True if this processor converts halves; LLVM would else call a missing library."""
    from llvmlite import binding

    return machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))


def put_in_place(names: dict[str, Any]) -> None:
    """Replaces lazy loops by compiled loops in a module, and in the modules that define them."""
    for name, value in list(names.items()):
        if isinstance(value, Lazy):
            names[name] = value.compiled
            put_in_place(value.module)
