"""Announcements: messages of a rank about a bucket, before or together with its encoded frame.

Hooks average models in which ranks may use different parameters in a step. So each rank announces
the parameters that it used, or the reason why it sends none. All ranks then skip the parameters
that no rank used, and all ranks raise the same error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import CodecError, Diverged, FrameError
from atomo.exchange.base import Usage
from atomo.exchange.compressor import Compressor
from atomo.fusion import Bucket
from atomo.fusion.buckets import subset
from atomo.wire import Bytes

__all__ = [
    "Announced",
    "Announcement",
    "AnnouncementKind",
    "NotFinite",
    "add_subset",
    "all_encoded",
    "announce",
    "check_encoded",
    "cut_out",
    "encode_used",
    "read_announcement",
    "read_announcements",
    "write_announcement",
]

T = TypeVar("T")
NOTHING = np.empty(0, np.uint8)


class NotFinite(Diverged):
    """A rank's gradient holds NaN or infinity. Every rank detects this in the same bucket."""


class AnnouncementKind(IntEnum):
    """Kinds of announcements."""

    ENCODED = 0  # the used parameters, and their frame; no frame if none was used
    NOT_FINITE = 1  # the parameters with NaN or infinity in their gradients
    REFUSED = 2  # no parameters, and the encoding error as UTF-8


@final
@dataclass(frozen=True)
class Announcement:
    """One rank's announcement about one bucket."""

    kind: AnnouncementKind
    marked: tuple[bool, ...]
    """True or False for each parameter of the bucket, in its order."""
    body: Bytes


@final
@dataclass(frozen=True)
class Announced(Generic[T]):
    """A rank's announcement about a bucket, with the payload that it announces."""

    announcement: Bytes
    part: Bucket
    """The parameters that are encoded."""
    encoded: T | None
    """None: this rank has nothing to send."""
    device: torch.device
    """The device that the gradient was on."""


def write_announcement(kind: AnnouncementKind, marked: Sequence[bool], body: Bytes) -> Bytes:
    """Returns the bytes of an announcement, at least one."""
    bits = np.packbits(np.array(marked, bool))
    return np.concatenate([np.array([kind], np.uint8), bits, body])


def read_announcement(data: Bytes, parameters: int) -> Announcement:
    """Returns the inverse of `write_announcement`.

    Raises:
        FrameError: the bytes are no announcement about so many parameters.
    """
    size = 1 + -(-parameters // 8)
    if data.size < size or data[0] not in AnnouncementKind.__members__.values():
        raise FrameError(f"{data.size} bytes are no message about {parameters} parameters")
    marked = np.unpackbits(data[1:size], count=parameters).astype(bool).tolist()
    return Announcement(AnnouncementKind(int(data[0])), tuple(marked), data[size:])


def read_announcements(messages: Sequence[Bytes], bucket: Bucket) -> list[Announcement]:
    """Returns the announcements of all ranks. Errors: those of `read_announcement`."""
    return [read_announcement(message, len(bucket.slots)) for message in messages]


def announce(bucket: Bucket, usage: Usage, compressor: Compressor) -> tuple[Bytes, list[bool]]:
    """Returns an announcement without a body, and which parameters are to be encoded.

    With a memory, a parameter with a zero gradient is skipped. DDP passes zero gradients for unused
    parameters, and discards the mean for a parameter that no rank used. A residual sent with such a
    gradient would be lost.
    """
    names = [slot.name for slot in bucket.slots]
    if usage.not_finite:
        marked = [name in usage.not_finite for name in names]
        announcement = write_announcement(AnnouncementKind.NOT_FINITE, marked, NOTHING)
        return announcement, [False] * len(names)
    unused = usage.unused if compressor.memory.vectors else frozenset[str]()
    marked = [name not in unused for name in names]
    return write_announcement(AnnouncementKind.ENCODED, marked, NOTHING), marked


def encode_used(
    bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage, compressor: Compressor
) -> Announced[list[Any]]:
    """Encodes the parameters of a bucket that this rank used.

    A codec's error is announced too, so that all ranks raise it.
    """
    announcement, used = announce(bucket, usage, compressor)
    if not any(used):
        return Announced(announcement, bucket, None, flat.device)
    part = subset(bucket, tuple(used))
    try:
        payloads = compressor.encode(part, cut_out(bucket, part, flat), step)
    except CodecError as error:
        reason = np.frombuffer(str(error).encode(), np.uint8)
        refusal = write_announcement(AnnouncementKind.REFUSED, used, reason)
        return Announced(refusal, bucket, None, flat.device)
    return Announced(announcement, part, payloads, flat.device)


def all_encoded(announcements: Sequence[Announcement]) -> bool:
    """Returns True if every rank has encoded its used parameters."""
    return all(announcement.kind is AnnouncementKind.ENCODED for announcement in announcements)


def check_encoded(announcements: Sequence[Announcement], bucket: Bucket) -> None:
    """Raises the error that kept a rank from encoding; the same error on all ranks.

    Raises:
        NotFinite: a rank's gradient holds NaN or infinity.
        CodecError: a rank could not encode its gradient.
    """
    for rank, announcement in enumerate(announcements):
        if announcement.kind is AnnouncementKind.REFUSED:
            reason = bytes(announcement.body).decode(errors="replace")
            raise CodecError(f"rank {rank}: {reason}")
        if announcement.kind is AnnouncementKind.NOT_FINITE:
            slots = zip(bucket.slots, announcement.marked, strict=True)
            names = ", ".join(slot.name for slot, marked in slots if marked)
            raise NotFinite(f"rank {rank}: the gradient of {names} is no longer finite")


def cut_out(bucket: Bucket, part: Bucket, flat: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    """Returns the flat gradient of some of a bucket's parameters."""
    if part is bucket:
        return flat
    slots = {slot.name: slot for slot in bucket.slots}
    return torch.cat([flat[slots[s.name].start : slots[s.name].stop] for s in part.slots])


def add_subset(
    bucket: Bucket, part: Bucket, decoded: Float[Tensor, " m"], out: Float[Tensor, " n"]
) -> None:
    """Adds the mean of some of a bucket's parameters at their places in the bucket."""
    slots = {slot.name: slot for slot in bucket.slots}
    for slot in part.slots:
        place = slots[slot.name]
        out[place.start : place.stop].add_(decoded[slot.start : slot.stop])
