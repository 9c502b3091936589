"""What a caller gave to `atomo.encode`, checked: every refusal names what it was."""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from atomo.codecs import Codec, make_codec
from atomo.errors import CodecError, ConfigError
from atomo.wire.sections import DTYPES, MOST_DIMENSIONS

__all__ = ["as_codec", "as_float32", "as_tensors", "seeded"]

LOWEST_SEED, HIGHEST_SEED = -(2**63), 2**64 - 1  # what a generator takes


def as_codec(code: object) -> Codec[Any]:
    """The codec that was given, or the one of its specification.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(code, Codec):
        return code
    if isinstance(code, str):
        return make_codec(code)
    raise ConfigError(f"code must be a codec or its specification, got {told(code)}")


def seeded(seed: object) -> Generator:
    """A generator of this seed.

    Raises:
        CodecError: it is no whole number, or out of range.
    """
    try:
        number = index(seed)  # type: ignore[arg-type]  # which is what is found out
    except TypeError:
        raise CodecError(f"seed must be a whole number, got {told(seed)}") from None
    if not LOWEST_SEED <= number <= HIGHEST_SEED:
        raise CodecError(f"seed must be from -2^63 to 2^64 - 1, got {number}")
    return Generator().manual_seed(number)


def as_tensors(given: object) -> list[Tensor]:
    """One tensor, or several, each of which can be encoded.

    Raises:
        CodecError: something among it cannot.
    """
    if isinstance(given, Tensor):
        return [checked(given, "the tensor")]
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | np.ndarray):
        raise CodecError(f"tensors must be a tensor or a list of tensors, got {told(given)}")
    return [checked(one, f"tensors[{number}]") for number, one in enumerate(given)]


def checked(one: object, what: str) -> Tensor:
    """A tensor that can be encoded."""
    if not isinstance(one, Tensor):
        raise CodecError(f"{what} must be a tensor, got {told(one)}")
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
    """A tensor's entries on the CPU, as codecs want them.

    Raises:
        CodecError: one that is finite is not so in float32.
    """
    found = tensor.detach().to("cpu", torch.float32)
    if tensor.dtype is torch.float64 and bool((found.isinf() & ~tensor.isinf().cpu()).any()):
        raise CodecError(
            f"an entry of {float(tensor.abs().max()):g} is beyond float32, in which gradients are "
            f"encoded: at most {torch.finfo(torch.float32).max:g}"
        )
    return found


def told(given: object) -> str:
    """What something is, for an error."""
    if isinstance(given, np.ndarray):
        return f"a numpy array of {given.dtype}; torch.from_numpy makes a tensor of it"
    shown = repr(given)
    return f"{shown[:60]} of type {type(given).__name__}"
