"""`atomo.encode`, `atomo.decode` and `atomo.average`."""

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Generator, Size, Tensor

from atomo.api.description import Description, read, write
from atomo.api.given import as_codec, as_float32, as_tensors, seeded
from atomo.api.limits import MOST_BYTES, MOST_ENTRIES, Limits
from atomo.codecs import Codec, Law
from atomo.codecs.small import DENSE_BELOW
from atomo.errors import CodecError, FrameError
from atomo.memory import Memory, check_fits
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack
from atomo.wire.frame import read_description

__all__ = ["average", "decode", "encode"]


def encode(
    tensors: Tensor | Iterable[Tensor],
    code: str | Codec[Any],
    *,
    seed: int,
    compression: Compression | None = None,
    memory: Memory | None = None,
    dense_below: int | None = None,
) -> bytes:
    """Compresses one tensor, or a list of them, into bytes that say how to decode them.

    Args:
        tensors: floating point; another dtype than float32 is converted to it on the way, and back
            by `decode`. Each is encoded on its own.
        code: a codec, or its specification such as "svd(rank=3)".
        seed: of the generator that unbiased codecs round or sample with. Same seed, same bytes.
        compression: blosc's settings for the sections.
        memory: adds to each tensor what it kept of the one in the same place at earlier calls, and
            keeps what is not sent of it now. One memory for each worker.
        dense_below: vectors and scalars with fewer entries travel as they are, whatever the codec.
            By default nothing does where one tensor is given, and of a list, as the parameters of a
            model are, what a training run sends dense: biases and norms, below 8192 entries.

    Raises:
        ConfigError: `code` is no codec, or not one that the memory suits.
        CodecError: what was given is no dense tensor of floating point with at least one entry and
            at most 16 dimensions, or holds what the codec cannot carry; the seed is none.
    """
    codec, generator, batch = as_codec(code), seeded(seed), as_tensors(tensors)
    if memory is not None:
        check_fits(codec, memory)
    single = isinstance(tensors, Tensor)
    below = (0 if single else DENSE_BELOW) if dense_below is None else max(0, index(dense_below))
    about = Description(codec, single, tuple((one.dtype, one.shape) for one in batch), below)
    sections: list[Tensor] = []
    for place, tensor in enumerate(batch):
        coder, gradient = about.coder(tensor.shape), as_float32(tensor)
        payload = encoded(coder, gradient, place, memory, generator)
        sections += coder.sections(payload)
    header = Header(Kind.TENSORS)
    return pack(header, sections, compression or Compression(), write(about)).tobytes()


def encoded(
    codec: Codec[Any], gradient: Tensor, place: int, memory: Memory | None, generator: Generator
) -> Any:
    """The payload of one tensor, with what the memory kept of those in its place."""
    if memory is None:
        return codec.encode(gradient, generator)
    # What memories are given is theirs to change, and here it may still be the caller's.
    return memory.encode(
        codec,
        gradient.clone(memory_format=torch.contiguous_format),
        {str(place): gradient.shape},
        generator,
    )


def decode(
    data: bytes, *, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> Tensor | list[Tensor]:
    """What `encode` was given, less what its codec dropped.

    Args:
        data: bytes from anywhere: they are checked before anything is allocated, and what they may
            cost is bounded: see `atomo.api.limits`.
        most_entries: refuse frames that declare more than this many entries in all. The work that
            is done is bounded by this and by the bytes that came.
        most_bytes: refuse frames that may take more memory than this, result included.

    Raises:
        FrameError: these bytes are no frame that `encode` made, or they ask for more than that.
    """
    about, frame, limits = opened(data, most_entries, most_bytes)
    decoded = [fitted(one, about, place) for place, one in enumerate(rebuild(about, frame, limits))]
    return decoded[0] if about.single else decoded


def average(
    frames: Iterable[bytes], *, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> Tensor | list[Tensor]:
    """The aggregate of what several workers encoded: the mean, or the vote of codecs that vote.

    `signsgd` and `signum` decode to 1 and -1; their aggregate is the sign of the majority, and 0
    where it is a tie.

    Args:
        frames: one of each worker, of the same tensors and codec.
        most_entries: as of `decode`, for each frame.
        most_bytes: as of `decode`, for each frame.

    Raises:
        FrameError: as of `decode`, or the frames are not of the same tensors and codec.
        CodecError: there are none.
    """
    opening = [opened(frame, most_entries, most_bytes) for frame in frames]
    if not opening:
        raise CodecError("an average needs at least one frame, got none")
    about = opening[0][0]
    for other, _, _ in opening:
        check_same(about, other)
    total = rebuild(*opening[0])
    for another in opening[1:]:
        for one, added in zip(total, rebuild(*another), strict=True):
            one += added
    for one in total:
        about.coder(one.shape).finish(one.div_(len(opening)))
    mean = [fitted(one, about, place) for place, one in enumerate(total)]
    return mean[0] if about.single else mean


def check_same(about: Description, other: Description) -> None:
    """Raises FrameError where two frames cannot be averaged."""
    if other != about:
        raise FrameError(
            f"frames of one average must be of the same tensors and codec: {other.codec} of "
            f"{other.tensors[:3]} is not {about.codec} of {about.tensors[:3]}"
        )


def opened(data: bytes, most_entries: int, most_bytes: int) -> tuple[Description, Bytes, Limits]:
    """What a frame says of its tensors, itself, and what it may ask for."""
    frame = np.frombuffer(data, np.uint8)
    if read_header(frame).kind is not Kind.TENSORS:
        raise FrameError("this frame does not stand alone: it belongs to a training step")
    limits = Limits(most_entries, most_bytes, len(frame))
    return read(read_description(frame)[0], limits.tensors), frame, limits


def fitted(decoded: Tensor, about: Description, place: int) -> Tensor:
    """A decoded tensor in the dtype that was encoded.

    What rounding at random put beyond the largest number of that dtype becomes that number: the
    nearest to what was decoded, and of use where infinity would end a training run.
    """
    dtype, shape = about.tensors[place]
    if Law.LOSSLESS not in about.coder(shape).laws:  # which sends infinity where it was given it
        most = min(torch.finfo(kind).max for kind in (dtype, torch.float32))
        decoded = decoded.clamp_(-most, most)
    return decoded.to(dtype)


def rebuild(about: Description, frame: Bytes, limits: Limits) -> list[Tensor]:
    """The tensors, in float32, of a frame that is what `about` says."""
    left = limits.left_for_sections(about.tensors)
    coders = [(about.coder(shape), shape) for _, shape in about.tensors]
    fields = [field for codec, shape in coders for field in codec.fields(shape)]
    tensors = unpack(frame, fields, left)
    left -= sum(tensor.nbytes for tensor in tensors)
    sections = iter(tensors)
    payloads = [codec.assemble(sections) for codec, _ in coders]
    parts = list(zip(coders, payloads, strict=True))
    limits.check_costs((codec.cost(payload, shape) for (codec, shape), payload in parts), left)
    return [rebuilt(*coder, payload) for coder, payload in parts]


def rebuilt(codec: Codec[Any], shape: Size, payload: Any) -> Tensor:
    """One tensor of a frame, in float32."""
    try:
        return codec.decode(payload, shape)
    except CodecError as error:
        raise FrameError(f"the payload does not fit its tensor: {error}") from error
