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

LOWEST_SEED, HIGHEST_SEED = -(2**63), 2**64 - 1  # the range of torch.Generator


def as_codec(code: object) -> Codec[Any]:
    """Returns the given codec, or builds it from its specification.

    Raises:
        ConfigError: `code` is neither a codec nor a specification.
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


def as_compression(compression: object) -> Compression:
    """Returns the compression of sections; None gives the default.

    Raises:
        ConfigError: the argument is of another type.
    """
    if compression is None:
        return Compression()
    if isinstance(compression, Compression):
        return compression
    raise ConfigError(
        "compression must be such as atomo.Compression('zstd', level=3), "
        f"got {value_text(compression)}"
    )


def as_memory(memory: object) -> Memory | None:
    """Returns the memory of several calls, or None.

    Raises:
        ConfigError: the argument is of another type, such as the name of a memory.
    """
    if memory is None or isinstance(memory, Memory):
        return memory
    hint = ""
    if isinstance(memory, str):
        hint = (
            f"; a name makes a new memory, and all calls need the same memory: make it once, as "
            f"atomo.make_memory({memory!r}), or use atomo.Encoder(code, memory={memory!r})"
        )
    raise ConfigError(
        f"memory must be a memory of atomo.make_memory, got {value_text(memory)}{hint}"
    )


def whole(name: str, value: object) -> int:
    """Returns an argument as a whole number.

    Raises:
        ConfigError: the argument is no whole number.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]  # it raises TypeError then
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value_text(value)}") from None


def as_frame(data: object) -> Bytes:
    """Returns the bytes of one frame.

    Raises:
        CodecError: the argument is not bytes.
    """
    try:
        return np.frombuffer(data, np.uint8)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        several = isinstance(data, Iterable) and not isinstance(data, str | Tensor)
        hint = "; atomo.average takes several frames" if several else ""
        raise CodecError(
            f"a frame must be bytes from encode, got {value_text(data)}{hint}"
        ) from None
    except BufferError as error:
        raise CodecError(f"a frame must be contiguous bytes: {error}") from error


def as_frames(frames: object) -> list[Bytes]:
    """Returns the bytes of several frames.

    Raises:
        CodecError: the argument is not a list of frames, or is an empty list.
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
        CodecError: `seed` is no whole number, or out of range.
    """
    try:
        number = whole("seed", seed)
    except ConfigError as error:
        raise CodecError(str(error)) from None
    if not LOWEST_SEED <= number <= HIGHEST_SEED:
        raise CodecError(f"seed must be from -2^63 to 2^64 - 1, got {number}")
    return Generator().manual_seed(number)


def as_tensors(tensors: object, label: str = "tensors") -> list[Tensor]:
    """Returns a tensor, or several, as a list, after a check that each can be encoded or decoded
    into.

    Args:
        tensors: the argument, of any type.
        label: its name, for an error.

    Raises:
        CodecError: an element cannot be encoded.
    """
    if isinstance(tensors, Tensor):
        return [checked(tensors, "the tensor" if label == "tensors" else label)]
    if not isinstance(tensors, Iterable) or isinstance(tensors, str | bytes | Mapping | np.ndarray):
        raise CodecError(
            f"{label} must be a tensor or a list of tensors, got {value_text(tensors)}"
            f"{hint_of(tensors)}"
        )
    return [checked(tensor, f"{label}[{number}]") for number, tensor in enumerate(tensors)]


def named(tensors: object) -> dict[str, Tensor]:
    """Returns tensors that can be encoded, by name; in a list the position is the name.

    Raises:
        CodecError: an element cannot be encoded, or a name is not text.
    """
    if not isinstance(tensors, Mapping):
        return {str(place): tensor for place, tensor in enumerate(as_tensors(tensors))}
    for name in tensors:
        if not isinstance(name, str):
            raise CodecError(f"the name of a tensor must be text, got {value_text(name)}")
    return {name: checked(tensor, f"tensor {name!r}") for name, tensor in tensors.items()}


def hint_of(value: object) -> str:
    """Returns the hint for encoding an argument that is not a tensor, as the end of an error."""
    if isinstance(value, Mapping):
        return "; give its values(), or name tensors with atomo.Encoder"
    if isinstance(value, torch.nn.Module):
        return "; give the gradients of its parameters()"
    return "; tensors come first, and the codec second" if isinstance(value, Codec | str) else ""


def checked(tensor: object, label: str) -> Tensor:
    """Returns a tensor after a check that it can be encoded."""
    if not isinstance(tensor, Tensor):
        raise CodecError(f"{label} must be a tensor, got {value_text(tensor)}")
    if tensor.dtype not in DTYPES or not tensor.is_floating_point():
        raise CodecError(f"{label} is of {tensor.dtype}; give floating point of 16, 32 or 64 bits")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise CodecError(f"{label} is {tensor.layout}; give it dense, as its to_dense() is")
    if tensor.device.type == "meta":
        raise CodecError(f"{label} is on the meta device: it has a shape and no entries")
    if tensor.ndim > MOST_DIMENSIONS:
        raise CodecError(
            f"{label} has {tensor.ndim} dimensions; at most {MOST_DIMENSIONS}: flatten it"
        )
    if not tensor.numel():
        raise CodecError(f"{label} is empty: its shape is {tuple(tensor.shape)}")
    return tensor


def as_float32(tensor: Tensor) -> Tensor:
    """Converts the entries of a tensor to float32 on the CPU.

    Raises:
        CodecError: an entry is finite, but infinite in float32.
    """
    rounded = tensor.detach().to("cpu", torch.float32)
    check_reach(tensor, rounded)
    return rounded


def check_reach(tensor: Tensor, rounded: Tensor) -> None:
    """Raises CodecError if an entry is finite, but infinite in float32."""
    if tensor.dtype is torch.float64 and bool((rounded.isinf() & ~tensor.isinf().cpu()).any()):
        raise CodecError(
            f"an entry of {float(tensor.abs().max()):g} is beyond float32, in which gradients are "
            f"encoded: at most {torch.finfo(torch.float32).max:g}"
        )


def value_text(value: object) -> str:
    """Describes an argument of the wrong type, for an error."""
    if isinstance(value, np.ndarray):
        return f"a numpy array of {value.dtype}; torch.from_numpy makes a tensor of it"
    return described(value)
