"""Loops compiled by numba: numpy arrays in, numpy arrays out, one thread."""

import inspect
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, final

__all__ = ["jit", "jit_sum", "trailing_zeros"]


def jit(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop at its first call, once for all processes, and lets other threads run."""
    return Loop(loop, False)


def jit_sum(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The same for one that only sums: its additions may be reordered, and so be vectorised.

    The last bits of a sum then depend on the processor.
    """
    return Loop(loop, {"reassoc", "contract"})


class Lazy(ABC):
    """Something of numba that is not made yet.

    numba and what it needs take a while to import, which only those pay who use it. The first loop
    called puts what numba made in place of all that its module knows: numba knows no others.
    """

    module: dict[str, Any]
    """The names that belong to it."""

    @cached_property
    @abstractmethod
    def compiled(self) -> Callable[..., Any]:
        """What numba makes of it."""


@final
class Loop(Lazy):
    """A loop."""

    def __init__(self, loop: Callable[..., Any], fastmath: bool | set[str]) -> None:
        # The tests wrap every annotated function, which numba cannot read.
        self._plain: FunctionType = inspect.unwrap(loop)
        self._fastmath = fastmath
        self.module = self._plain.__globals__

    def __call__(self, *arguments: Any) -> Any:
        """Runs it."""
        put_in_place(self.module)
        return self.compiled(*arguments)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        try:
            return self._make(cache=True)
        except RuntimeError:  # neither beside the source nor at home is there a folder to write in
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
    """Makes numba keep what it compiles in a folder for temporary files that is this user's alone.

    What lies there is run, so it must not be possible for anybody else to have put it there.
    """
    import numba

    folder = Path(tempfile.gettempdir()) / f"atomo-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.geteuid():
        return False
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    return True


@final
class TrailingZeros(Lazy):
    """The zeros below the lowest one of a 64-bit word, in one instruction; 64 of a zero."""

    def __init__(self) -> None:
        self.module = {}

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba import types
        from numba.extending import intrinsic

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        def count_trailing_zeros(context: Any, word: Any) -> Any:
            return types.int64(types.uint64), build

        made: Callable[..., Any] = intrinsic(count_trailing_zeros)
        return made


trailing_zeros: Any = TrailingZeros()


def put_in_place(names: dict[str, Any]) -> None:
    """Compiled loops for all in a module, and in the modules that these come from."""
    for name, value in list(names.items()):
        if isinstance(value, Lazy):
            names[name] = value.compiled
            put_in_place(value.module)
