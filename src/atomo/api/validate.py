"""Checks of the arguments of this package; each error names the value."""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from atomo.codecs import Codec, make_codec
from atomo.core.names import described
from atomo.errors import CodecError, ConfigError
from atomo.memory import Memory
from atomo.wire import Bytes, Compression
from atomo.wire.sections import DTYPES, MOST_DIMENSIONS

__all__ = [
    "as_codec",
    "as_compression",
    "as_float32",
    "as_frame",
    "as_frames",
    "as_memory",
    "as_tensors",
    "check_reach",
    "named",
    "seeded",
    "whole",
]

LOWEST_SEED, HIGHEST_SEED = -(2**63), 2**64 - 1  # what a generator takes


def as_codec(code: object) -> Codec[Any]:
    """Returns the given codec, or builds it from its specification.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(code, Codec):
        return code
    if isinstance(code, str):
        return make_codec(code)
    if isinstance(code, type) and issubclass(code, Codec):
        raise ConfigError(f"code must be a codec, not its class: write {code.__name__}()")
    order = ""
    if isinstance(code, Tensor):
        order = "; tensors come first, and the codec second"
    raise ConfigError(f"code must be a codec or its specification, got {value_text(code)}{order}")


def as_compression(given: object) -> Compression:
    """Returns the compression of sections, or the default.

    Raises:
        ConfigError: something else was given.
    """
    if given is None:
        return Compression()
    if isinstance(given, Compression):
        return given
    raise ConfigError(
        f"compression must be such as atomo.Compression('zstd', level=3), got {value_text(given)}"
    )


def as_memory(given: object) -> Memory | None:
    """Returns the memory that serves several calls, if there is one.

    Raises:
        ConfigError: something else was given, such as the name of a memory.
    """
    if given is None or isinstance(given, Memory):
        return given
    hint = ""
    if isinstance(given, str):
        hint = (
            f"; a name makes a new memory, and one must last for all calls: make it once, as "
            f"atomo.make_memory({given!r}), or use atomo.Encoder(code, memory={given!r})"
        )
    raise ConfigError(
        f"memory must be one that atomo.make_memory made, got {value_text(given)}{hint}"
    )


def whole(name: str, given: object) -> int:
    """Returns an argument as a whole number.

    Raises:
        ConfigError: something else was given.
    """
    try:
        if isinstance(given, bool):
            raise TypeError
        return index(given)  # type: ignore[arg-type]  # which is what is found out
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value_text(given)}") from None


def as_frame(data: object) -> Bytes:
    """Returns the bytes of one frame.

    Raises:
        CodecError: something else was given.
    """
    try:
        return np.frombuffer(data, np.uint8)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        several = isinstance(data, Iterable) and not isinstance(data, str | Tensor)
        hint = "; atomo.average takes several frames" if several else ""
        raise CodecError(
            f"a frame is bytes that encode made, got {value_text(data)}{hint}"
        ) from None
    except BufferError as error:
        raise CodecError(f"a frame must be bytes one after the other: {error}") from error


def as_frames(frames: object) -> list[Bytes]:
    """Returns the bytes of several frames.

    Raises:
        CodecError: something else was given, one frame, or none.
    """
    if isinstance(frames, bytes | bytearray | memoryview):
        raise CodecError(
            "frames must be a list, a frame of each worker, got one frame: atomo.decode reads it"
        )
    if not isinstance(frames, Iterable) or isinstance(frames, str | Tensor):
        raise CodecError(f"frames must be a list, a frame of each worker, got {value_text(frames)}")
    checked = [as_frame(frame) for frame in frames]
    if not checked:
        raise CodecError("an average needs at least one frame, got none")
    return checked


def seeded(seed: object) -> Generator:
    """Returns a generator with this seed.

    Raises:
        CodecError: it is no whole number, or out of range.
    """
    try:
        number = whole("seed", seed)
    except ConfigError as error:
        raise CodecError(str(error)) from None
    if not LOWEST_SEED <= number <= HIGHEST_SEED:
        raise CodecError(f"seed must be from -2^63 to 2^64 - 1, got {number}")
    return Generator().manual_seed(number)


def as_tensors(given: object, what: str = "tensors") -> list[Tensor]:
    """Returns one tensor or several, after a check that each can be encoded or decoded into.

    Args:
        given: anything.
        what: its name, for an error.

    Raises:
        CodecError: something among it cannot.
    """
    if isinstance(given, Tensor):
        return [checked(given, "the tensor" if what == "tensors" else what)]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | np.ndarray):
        raise CodecError(
            f"{what} must be a tensor or a list of tensors, got {value_text(given)}{hint_of(given)}"
        )
    return [checked(one, f"{what}[{number}]") for number, one in enumerate(given)]


def named(given: object) -> dict[str, Tensor]:
    """Tensors that can be encoded, by name; in a list the place of each is its name.

    Raises:
        CodecError: something among it cannot, or a name is none.
    """
    if not isinstance(given, Mapping):
        return {str(place): tensor for place, tensor in enumerate(as_tensors(given))}
    for name in given:
        if not isinstance(name, str):
            raise CodecError(f"the name of a tensor must be text, got {value_text(name)}")
    return {name: checked(one, f"tensor {name!r}") for name, one in given.items()}


def hint_of(given: object) -> str:
    """Returns the hint for encoding an argument that is not a tensor, as the end of an error."""
    if isinstance(given, Mapping):
        return "; give its values(), or name tensors with atomo.Encoder"
    if isinstance(given, torch.nn.Module):
        return "; give the gradients of its parameters()"
    return "; tensors come first, and the codec second" if isinstance(given, Codec | str) else ""


def checked(one: object, what: str) -> Tensor:
    """Returns a tensor after a check that it can be encoded."""
    if not isinstance(one, Tensor):
        raise CodecError(f"{what} must be a tensor, got {value_text(one)}")
    if one.dtype not in DTYPES or not one.is_floating_point():
        raise CodecError(f"{what} is of {one.dtype}; give floating point of 16, 32 or 64 bits")
    if one.layout is not torch.strided or one.is_nested:
        raise CodecError(f"{what} is {one.layout}; give it dense, as its to_dense() is")
    if one.device.type == "meta":
        raise CodecError(f"{what} is on the meta device: it has a shape and no entries")
    if one.ndim > MOST_DIMENSIONS:
        raise CodecError(f"{what} has {one.ndim} dimensions; at most {MOST_DIMENSIONS}: flatten it")
    if not one.numel():
        raise CodecError(f"{what} is empty: its shape is {tuple(one.shape)}")
    return one


def as_float32(tensor: Tensor) -> Tensor:
    """Converts the entries of a tensor to float32 on the CPU.

    Raises:
        CodecError: one that is finite is not so in float32.
    """
    rounded = tensor.detach().to("cpu", torch.float32)
    check_reach(tensor, rounded)
    return rounded


def check_reach(tensor: Tensor, rounded: Tensor) -> None:
    """Raises CodecError where an entry is finite, and is not so as float32."""
    if tensor.dtype is torch.float64 and bool((rounded.isinf() & ~tensor.isinf().cpu()).any()):
        raise CodecError(
            f"an entry of {float(tensor.abs().max()):g} is beyond float32, in which gradients are "
            f"encoded: at most {torch.finfo(torch.float32).max:g}"
        )


def value_text(given: object) -> str:
    """Describes an argument of the wrong type, for an error."""
    if isinstance(given, np.ndarray):
        return f"a numpy array of {given.dtype}; torch.from_numpy makes a tensor of it"
    return described(given)
