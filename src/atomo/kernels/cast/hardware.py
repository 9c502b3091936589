"""The processor's own conversions between float32 and half precision, for loops of numba."""

from collections.abc import Callable
from functools import cache, cached_property
from platform import machine
from typing import Any, final

from atomo.kernels.jit import Lazy

__all__ = ["from_half", "has_halves", "to_half_bits"]


@cache
def has_halves() -> bool:
    """Whether this processor converts: otherwise LLVM would call a library that is not there."""
    from llvmlite import binding  # type: ignore[import-untyped]

    return machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))


@final
class ToHalf(Lazy):
    """The bits of the half that is nearest to a float32; of two, of the even one."""

    def __init__(self) -> None:
        self.module = {}

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            half = builder.fptrunc(arguments[0], ir.HalfType())
            return builder.bitcast(half, ir.IntType(16))

        def convert(context: Any, number: Any) -> Any:
            return types.uint16(types.float32), build

        made: Callable[..., Any] = intrinsic(convert)
        return made


@final
class FromHalf(Lazy):
    """The float32 of a half, given as bits."""

    def __init__(self) -> None:
        self.module = {}

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            half = builder.bitcast(arguments[0], ir.HalfType())
            return builder.fpext(half, ir.FloatType())

        def convert(context: Any, bits: Any) -> Any:
            return types.float32(types.uint16), build

        made: Callable[..., Any] = intrinsic(convert)
        return made


to_half_bits: Any = ToHalf()
from_half: Any = FromHalf()
