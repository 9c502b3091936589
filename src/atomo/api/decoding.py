"""`atomo.decode` and `atomo.average`: tensors from bytes of an untrusted sender."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from atomo.api.description import Description, parse_description
from atomo.api.limits import MOST_BYTES, MOST_ENTRIES, Limits
from atomo.api.validate import as_frame, as_frames, as_tensors, whole
from atomo.codecs import Codec, Law
from atomo.errors import CodecError, FrameError
from atomo.wire import Bytes, Kind, read_header, unpack
from atomo.wire.frame import read_description

__all__ = ["average", "decode"]

Frame = bytes | bytearray | memoryview
Out = TypeVar("Out", bound=Tensor | Iterable[Tensor])
Opened = tuple[Description, Bytes, Limits]
"""The description of a frame, the frame, and the limits on its cost."""


@overload
def decode(
    data: Frame, *, out: Out, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> Out: ...
@overload
def decode(
    data: Frame, *, out: None = None, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES
) -> Tensor | list[Tensor]: ...
def decode(
    data: Frame,
    *,
    out: Any = None,
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> Any:
    """Rebuilds what `encode` was given, less what its codec dropped.

    >>> from atomo.api import encode
    >>> data, room = encode(torch.ones(3), "fp16", seed=0), torch.empty(3)
    >>> decode(data)
    tensor([1., 1., 1.])
    >>> decode(data, out=room) is room
    True

    Args:
        data: bytes from anywhere: they are checked before anything is allocated, and what they may
            cost is bounded: see `atomo.api.limits`.
        out: a tensor, or a list of them, to write into and return, of the shapes in the frame. In
            float32 nothing else is allocated for the result. After an error it may hold anything.
        most_entries: refuse frames that declare more than this many entries in all. The work that
            is done is bounded by this and by the bytes that came.
        most_bytes: refuse frames that may take more memory than this, result included.

    Raises:
        FrameError: these bytes are no frame that `encode` made, ask for more than that, or hold
            tensors of other shapes than `out`.
        CodecError: `data` is no bytes, or `out` no tensors.
    """
    frame = opened(as_frame(data), most_entries, most_bytes)
    return mean_of([frame], out)


@overload
def average(
    frames: Iterable[Frame],
    *,
    out: Out,
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> Out: ...
@overload
def average(
    frames: Iterable[Frame],
    *,
    out: None = None,
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> Tensor | list[Tensor]: ...
def average(
    frames: Iterable[Frame],
    *,
    out: Any = None,
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> Any:
    """Aggregates what several workers encoded: the mean, or the vote of codecs that vote.

    `signsgd` and `signum` decode to 1 and -1; their aggregate is the sign of the majority, and 0
    where it is a tie.

    >>> from atomo.api import encode
    >>> average([encode(torch.full((2,), value), "sgd", seed=0) for value in (1.0, 2.0)])
    tensor([1.5000, 1.5000])

    Args:
        frames: one of each worker, of the same tensors and codec.
        out: as of `decode`; where gradients are, say.
        most_entries: as of `decode`, for each frame.
        most_bytes: as of `decode`, for each frame.

    Raises:
        FrameError: as of `decode`, or the frames are not of the same tensors and codec.
        CodecError: there are none, or something else was given.
    """
    return mean_of([opened(one, most_entries, most_bytes) for one in as_frames(frames)], out, True)


def mean_of(frames: Sequence[Opened], out: Any, finish: bool = False) -> Any:
    """Computes the mean of frames, in `out` if given, and aggregates it on request."""
    about = frames[0][0]
    for other, _, _ in frames:
        check_same(about, other)
    given = given_out(about, out)
    totals: list[Tensor] = []
    for frame in frames:
        parts = parts_of(frame)
        totals = totals or rooms(about, given)  # not before the first frame is seen to be in order
        for (codec, payload), total in zip(parts, totals, strict=True):
            add_payload(codec, payload, total)
    for total in totals if finish else ():
        about.coder(total.shape).finish(total.div_(len(frames)))
    fitted = [fit(total, about, place) for place, total in enumerate(totals)]
    if given is None:
        return fitted[0] if about.single else fitted
    for target, total in zip(given, fitted, strict=True):
        target.copy_(total)  # itself, where it was the room
    return out


def given_out(about: Description, out: Any) -> list[Tensor] | None:
    """Returns the tensors to write into, detached; None if there are none."""
    if out is None:
        return None
    given = [tensor.detach() for tensor in as_tensors(out, "out")]
    shapes = [shape for _, shape in about.tensors]
    if isinstance(out, Tensor) != about.single or [one.shape for one in given] != shapes:
        raise FrameError(
            f"the frame holds {listed(shapes, about.single)}; out is "
            f"{listed([one.shape for one in given], isinstance(out, Tensor))}"
        )
    return given


def listed(shapes: Sequence[torch.Size], single: bool) -> str:
    """Formats shapes for an error."""
    some = [tuple(shape) for shape in shapes[:3]]
    more = ", ..." if len(shapes) > len(some) else ""
    words = ", ".join(map(str, some))
    return f"one tensor of {words}" if single else f"a list of {len(shapes)}: {words}{more}"


def rooms(about: Description, given: Sequence[Tensor] | None) -> list[Tensor]:
    """Zeros to add to, in float32: what was given, where it is that."""
    if given is None:
        return [torch.zeros(shape) for _, shape in about.tensors]
    return [
        one.zero_() if one.dtype is torch.float32 else torch.zeros(one.shape, device=one.device)
        for one in given
    ]


def check_same(about: Description, other: Description) -> None:
    """Raises FrameError where two frames cannot be averaged."""
    if other != about:
        raise FrameError(
            f"frames of one average must be of the same tensors and codec: {other.codec} of "
            f"{other.tensors[:3]} is not {about.codec} of {about.tensors[:3]}"
        )


def opened(frame: Bytes, most_entries: int, most_bytes: int) -> Opened:
    """Opens a frame: reads its description."""
    if read_header(frame).kind is not Kind.TENSORS:
        raise FrameError("this frame does not stand alone: it belongs to a training step")
    entries, size = whole("most_entries", most_entries), whole("most_bytes", most_bytes)
    limits = Limits(entries, size, len(frame))
    return parse_description(read_description(frame)[0], limits.tensors), frame, limits


def fit(decoded: Tensor, about: Description, place: int) -> Tensor:
    """Converts a decoded tensor to the dtype that was encoded.

    Random rounding may exceed the largest number of that dtype. Such an entry becomes the largest
    number, the nearest to the decoded one: infinity would end a training run.

    What rounding at random put beyond the largest number of that dtype becomes that number: the
    nearest to what was decoded, and of use where infinity would end a training run.
    """
    dtype, shape = about.tensors[place]
    if Law.LOSSLESS not in about.coder(shape).laws:  # which sends infinity where it was given it
        most = min(torch.finfo(kind).max for kind in (dtype, torch.float32))
        decoded = decoded.clamp_(-most, most)
    return decoded.to(dtype)


def parts_of(opened: Opened) -> list[tuple[Codec[Any], Any]]:
    """Returns the codec and the payload of each tensor, checked against the description."""
    about, frame, limits = opened
    left = limits.left_for_sections(about.tensors)
    coders = [(about.coder(shape), shape) for _, shape in about.tensors]
    fields = [field for codec, shape in coders for field in codec.fields(shape)]
    tensors = unpack(frame, fields, left)
    left -= sum(tensor.nbytes for tensor in tensors)
    sections = iter(tensors)
    payloads = [codec.assemble(sections) for codec, _ in coders]
    parts = zip(coders, payloads, strict=True)
    limits.check_costs((codec.cost(payload, shape) for (codec, shape), payload in parts), left)
    return [(codec, payload) for (codec, _), payload in zip(coders, payloads, strict=True)]


def add_payload(codec: Codec[Any], payload: Any, total: Tensor) -> None:
    """Adds one tensor of a frame, in place."""
    try:
        codec.add_decoded(payload, total)
    except CodecError as error:
        raise FrameError(f"the payload does not fit its tensor: {error}") from error
