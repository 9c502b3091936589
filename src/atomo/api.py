"""Tensors to self-describing bytes and back, with any codec: `atomo.encode` and `atomo.decode`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Size, Tensor

from atomo.codecs import Codec, Dense, Unit, make_codec
from atomo.errors import CodecError, ConfigError, FrameError
from atomo.limits import MOST_BYTES, MOST_ENTRIES, Limits
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack
from atomo.wire.cursor import Cursor, string, varint
from atomo.wire.frame import DTYPES, MOST_DIMENSIONS, read_description

__all__ = ["codec_for", "decode", "encode"]

DENSE = Dense()


@dataclass(frozen=True)
class Description:
    """What a self-describing frame says of its tensors."""

    codec: Codec[Any]
    single: bool  # one tensor, not a list of one
    tensors: tuple[tuple[torch.dtype, Size], ...]


def codec_for(codec: Codec[Any], shape: Size) -> Codec[Any]:
    """`codec`, or the dense one for a shape that it does not take: biases travel as they are."""
    return DENSE if codec.unit is Unit.MATRIX and len(shape) < 2 else codec


def encode(
    tensors: Tensor | Sequence[Tensor],
    code: str | Codec[Any],
    *,
    seed: int,
    compression: Compression | None = None,
) -> bytes:
    """Compresses one tensor, or a list of them, into bytes that say how to decode them.

    Args:
        tensors: floating point; another dtype than float32 is converted to it on the way, and back
            by `decode`. Each is encoded on its own.
        code: a codec, or its specification such as "svd(rank=3)".
        seed: of the generator that unbiased codecs round or sample with. Same seed, same bytes.
        compression: blosc's settings for the sections.

    Raises:
        ConfigError: `code` is no codec.
        CodecError: a tensor is empty, not floating point, or holds what the codec cannot carry.
    """
    single = isinstance(tensors, Tensor)
    batch = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    codec = make_codec(code) if isinstance(code, str) else code
    generator = Generator().manual_seed(seed)
    sections: list[Tensor] = []
    for tensor in batch:
        if tensor.dtype not in DTYPES or not tensor.is_floating_point():
            raise CodecError(f"{codec.id}: cannot encode a tensor of {tensor.dtype}")
        gradient = tensor.detach().to("cpu", torch.float32)
        coder = codec_for(codec, gradient.shape)
        payload = coder.encode(gradient, generator)
        sections += coder.sections(payload)
    about = Description(codec, single, tuple((tensor.dtype, tensor.shape) for tensor in batch))
    return pack(
        Header(Kind.TENSORS), sections, compression or Compression(), write(about)
    ).tobytes()


def decode(
    data: bytes, *, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> Tensor | list[Tensor]:
    """What `encode` was given, less what its codec dropped.

    Args:
        data: bytes from anywhere: they are checked before anything is allocated, and what they may
            cost is bounded: see `atomo.limits`.
        most_entries: refuse frames that declare more than this many entries in all. The work that
            is done is bounded by this and by the bytes that came.
        most_bytes: refuse frames that may take more memory than this, result included.

    Raises:
        FrameError: these bytes are no frame that `encode` made, or they ask for more than that.
    """
    frame = np.frombuffer(data, np.uint8)
    if read_header(frame).kind is not Kind.TENSORS:
        raise FrameError("this frame does not stand alone: it belongs to a training step")
    limits = Limits(most_entries, most_bytes, len(frame))
    about = read(read_description(frame)[0], limits.tensors)
    decoded = rebuild(about, frame, limits)
    return decoded[0] if about.single else decoded


def rebuild(about: Description, frame: Bytes, limits: Limits) -> list[Tensor]:
    """The tensors of a frame that is what `about` says."""
    left = limits.left_for_sections(about.tensors)
    coders = [(codec_for(about.codec, shape), dtype, shape) for dtype, shape in about.tensors]
    fields = [field for codec, _, shape in coders for field in codec.fields(shape)]
    tensors = unpack(frame, fields, left)
    left -= sum(tensor.nbytes for tensor in tensors)
    sections = iter(tensors)
    payloads = [codec.assemble(sections) for codec, _, _ in coders]
    parts = list(zip(coders, payloads, strict=True))
    limits.check_costs((codec.cost(payload, shape) for (codec, _, shape), payload in parts), left)
    return [rebuilt(*coder, payload) for coder, payload in parts]


def rebuilt(codec: Codec[Any], dtype: torch.dtype, shape: Size, payload: Any) -> Tensor:
    """One tensor of a frame."""
    try:
        return codec.decode(payload, shape).to(dtype)
    except CodecError as error:
        raise FrameError(f"the payload does not fit its tensor: {error}") from error


def write(about: Description) -> bytes:
    """The bytes of a description."""
    out = string(str(about.codec)) + bytes([about.single]) + varint(len(about.tensors))
    for dtype, shape in about.tensors:
        out += bytes([DTYPES.index(dtype), len(shape)]) + b"".join(map(varint, shape))
    return out


def read(cursor: Cursor, most_tensors: int) -> Description:
    """A description from bytes that a stranger may have written."""
    try:
        codec = make_codec(cursor.string())
    except ConfigError as error:
        raise FrameError(f"the frame names no codec of ours: {error}") from error
    single, count = cursor.byte(), cursor.varint()
    if single > 1 or (single and count != 1):
        raise FrameError(f"a single tensor declared as {count}")
    if count > most_tensors:
        raise FrameError(f"{count} tensors; at most {most_tensors} accepted (`most_bytes`)")
    tensors: list[tuple[torch.dtype, Size]] = []
    for _ in range(count):  # every round consumes bytes, so a hostile count ends with them
        tensors.append(read_tensor(cursor))
    return Description(codec, bool(single), tuple(tensors))


def read_tensor(cursor: Cursor) -> tuple[torch.dtype, Size]:
    """The dtype and shape of one tensor."""
    code, ndim = cursor.byte(), cursor.byte()
    if code >= len(DTYPES) or not DTYPES[code].is_floating_point or ndim > MOST_DIMENSIONS:
        raise FrameError(f"a tensor of dtype code {code} and {ndim} dimensions")
    shape = tuple(cursor.varint() for _ in range(ndim))
    entries = 1
    for dimension in shape:
        entries *= dimension
    if not 0 < entries < 2**62:
        raise FrameError(f"a tensor of shape {shape}: no entries, or more than memory has")
    return DTYPES[code], Size(shape)
