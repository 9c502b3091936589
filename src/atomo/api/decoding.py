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
    """Decodes the tensors in a frame of `encode`; a lossy codec decodes approximations.

    >>> from atomo.api import encode
    >>> data, room = encode(torch.ones(3), "fp16", seed=0), torch.empty(3)
    >>> decode(data)
    tensor([1., 1., 1.])
    >>> decode(data, out=room) is room
    True

    Args:
        data: bytes from any sender. They are checked before anything is allocated, and their cost
            is limited: see `atomo.api.limits`.
        out: a tensor, or a list of tensors, to write into and return, of the shapes in the frame.
            If `out` is float32, nothing else is allocated for the result. After an error the
            contents of `out` are undefined.
        most_entries: limit on the number of entries that a frame declares in all. This limit and
            the size of the frame bound the work of decoding.
        most_bytes: limit on the memory in bytes that decoding may take, result included.

    Raises:
        FrameError: the bytes are no frame of `encode`, exceed a limit, or hold tensors of other
            shapes than `out`.
        CodecError: `data` is not bytes, or `out` is not tensors.
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
    """Aggregates the frames of several workers: the mean, or a majority vote for sign codecs.

    `signsgd` and `signum` decode to 1 and -1; their aggregate is the sign of the majority, and 0
    for a tie.

    >>> from atomo.api import encode
    >>> average([encode(torch.full((2,), value), "sgd", seed=0) for value in (1.0, 2.0)])
    tensor([1.5000, 1.5000])

    Args:
        frames: a frame of each worker, of the same tensors and codec.
        out: as for `decode`; for example the `.grad` of the parameters.
        most_entries: as for `decode`, for each frame.
        most_bytes: as for `decode`, for each frame.

    Raises:
        FrameError: as for `decode`, or the frames are not of the same tensors and codec.
        CodecError: `frames` is empty, or is not a list of frames.
    """
    return mean_of(
        [opened(frame, most_entries, most_bytes) for frame in as_frames(frames)], out, True
    )


def mean_of(frames: Sequence[Opened], out: Any, finish: bool = False) -> Any:
    """Returns the mean of frames, in `out` if there is one.

    Args:
        frames: of the same tensors and codec.
        out: the tensors to write into, or None.
        finish: True to aggregate several workers' frames: a vote for codecs that vote.
    """
    about = frames[0][0]
    for description, _, _ in frames:
        check_same(about, description)
    targets = given_out(about, out)
    totals: list[Tensor] = []
    for frame in frames:
        parts = parts_of(frame)
        totals = totals or rooms(about, targets)  # allocated only after the first frame is checked
        for (codec, payload), total in zip(parts, totals, strict=True):
            add_payload(codec, payload, total)
    for total in totals if finish else ():
        about.coder(total.shape).finish(total.div_(len(frames)))
    fitted = [fit(total, about, place) for place, total in enumerate(totals)]
    if targets is None:
        return fitted[0] if about.single else fitted
    for target, total in zip(targets, fitted, strict=True):
        target.copy_(total)  # no copy of a target that was the buffer of the sum
    return out


def given_out(about: Description, out: Any) -> list[Tensor] | None:
    """Returns the tensors of `out`, detached; None without `out`."""
    if out is None:
        return None
    targets = [tensor.detach() for tensor in as_tensors(out, "out")]
    shapes = [shape for _, shape in about.tensors]
    if isinstance(out, Tensor) != about.single or [target.shape for target in targets] != shapes:
        raise FrameError(
            f"the frame holds {listed(shapes, about.single)}; out is "
            f"{listed([target.shape for target in targets], isinstance(out, Tensor))}"
        )
    return targets


def listed(shapes: Sequence[torch.Size], single: bool) -> str:
    """Formats shapes for an error."""
    shown = [tuple(shape) for shape in shapes[:3]]
    ellipsis = ", ..." if len(shapes) > len(shown) else ""
    words = ", ".join(map(str, shown))
    return f"one tensor of {words}" if single else f"a list of {len(shapes)}: {words}{ellipsis}"


def rooms(about: Description, targets: Sequence[Tensor] | None) -> list[Tensor]:
    """Returns float32 buffers of zeros for the sums: the targets themselves if they are float32."""
    if targets is None:
        return [torch.zeros(shape) for _, shape in about.tensors]
    return [
        target.zero_()
        if target.dtype is torch.float32
        else torch.zeros(target.shape, device=target.device)
        for target in targets
    ]


def check_same(about: Description, description: Description) -> None:
    """Raises FrameError if two frames cannot be averaged."""
    if description != about:
        raise FrameError(
            f"frames of one average must be of the same tensors and codec: {description.codec} of "
            f"{description.tensors[:3]} is not {about.codec} of {about.tensors[:3]}"
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
    """
    dtype, shape = about.tensors[place]
    if (
        Law.LOSSLESS not in about.coder(shape).laws
    ):  # a lossless codec sends an infinity of its input
        largest = min(torch.finfo(kind).max for kind in (dtype, torch.float32))
        decoded = decoded.clamp_(-largest, largest)
    return decoded.to(dtype)


def parts_of(opened: Opened) -> list[tuple[Codec[Any], Any]]:
    """Returns the codec and the payload of each tensor, checked against the description."""
    about, frame, limits = opened
    budget = limits.left_for_sections(about.tensors)
    coders = [(about.coder(shape), shape) for _, shape in about.tensors]
    fields = [field for codec, shape in coders for field in codec.fields(shape)]
    tensors = unpack(frame, fields, budget)
    budget -= sum(tensor.nbytes for tensor in tensors)
    sections = iter(tensors)
    payloads = [codec.assemble(sections) for codec, _ in coders]
    parts = zip(coders, payloads, strict=True)
    limits.check_costs((codec.cost(payload, shape) for (codec, shape), payload in parts), budget)
    return [(codec, payload) for (codec, _), payload in zip(coders, payloads, strict=True)]


def add_payload(codec: Codec[Any], payload: Any, total: Tensor) -> None:
    """Adds one tensor of a frame, in place."""
    try:
        codec.add_decoded(payload, total)
    except CodecError as error:
        raise FrameError(f"the payload does not fit its tensor: {error}") from error
