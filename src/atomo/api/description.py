"""Description of the tensors in a frame of kind TENSORS, to bytes and back."""

import math
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, final

import torch
from torch import Size

from atomo.codecs import Codec, Granularity, make_codec
from atomo.codecs.dense_fallback import DENSE, codec_for
from atomo.errors import ConfigError, FrameError
from atomo.wire.cursor import Cursor, string, varint
from atomo.wire.sections import DTYPES, MOST_DIMENSIONS

__all__ = ["Description", "parse_description", "write_description"]


class Form(IntFlag):
    """Flags in the byte after the codec."""

    SINGLE = 1  # one tensor, not a list of one
    BOUNDED = 2  # a varint follows: vectors of fewer entries are dense; without it the first rule


@final
@dataclass(frozen=True)
class Description:
    """The codec, the dtypes and the shapes of the tensors in a frame."""

    codec: Codec[Any]
    single: bool  # one tensor, not a list of one
    tensors: tuple[tuple[torch.dtype, Size], ...]
    dense_below: int | None = None
    """Vectors of fewer entries are dense. None for a frame of the first release: with a codec for
    matrices, vectors of any size are dense."""

    def coder(self, shape: Size) -> Codec[Any]:
        """Returns the codec for a tensor of this shape."""
        if self.dense_below is not None:
            return codec_for(self.codec, shape, self.dense_below)
        return (
            DENSE
            if self.codec.default_granularity is Granularity.PARAMETER and len(shape) < 2
            else self.codec
        )


def write_description(about: Description) -> bytes:
    """Encodes a description."""
    bounded = Form.BOUNDED if about.dense_below is not None else Form(0)
    out = string(str(about.codec)) + bytes([bounded | Form(about.single)])
    out += varint(about.dense_below) if about.dense_below is not None else b""
    out += varint(len(about.tensors))
    for dtype, shape in about.tensors:
        out += bytes([DTYPES.index(dtype), len(shape)]) + b"".join(map(varint, shape))
    return out


def parse_description(cursor: Cursor, most_tensors: int) -> Description:
    """Decodes a description from untrusted bytes.

    Raises:
        FrameError: the bytes are no description, or declare more than `most_tensors` tensors.
    """
    try:
        codec = make_codec(cursor.string())
    except ConfigError as error:
        raise FrameError(f"the frame names no codec of this version: {error}") from error
    form = cursor.byte()
    if form > Form.SINGLE | Form.BOUNDED:
        raise FrameError(
            f"tensors in form {form}; known are 0 to 3: is the frame of a newer release?"
        )
    dense_below = cursor.varint() if form & Form.BOUNDED else None
    count = cursor.varint()
    if form & Form.SINGLE and count != 1:
        raise FrameError(f"a single tensor declared as {count}")
    if count > most_tensors:
        raise FrameError(f"{count} tensors; at most {most_tensors} accepted (`most_bytes`)")
    # Every tensor consumes bytes: a hostile count ends with an error at the end of the bytes.
    tensors = tuple(read_tensor(cursor) for _ in range(count))
    return Description(codec, bool(form & Form.SINGLE), tensors, dense_below)


def read_tensor(cursor: Cursor) -> tuple[torch.dtype, Size]:
    code, ndim = cursor.byte(), cursor.byte()
    if code >= len(DTYPES) or not DTYPES[code].is_floating_point or ndim > MOST_DIMENSIONS:
        raise FrameError(f"a tensor of dtype code {code} and {ndim} dimensions")
    shape = tuple(cursor.varint() for _ in range(ndim))
    if not 0 < math.prod(shape) < 2**62:
        raise FrameError(f"a tensor of shape {shape}: no entries, or more than memory has")
    return DTYPES[code], Size(shape)
