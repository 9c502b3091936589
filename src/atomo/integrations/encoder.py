"""What one rank says of a bucket, from its gradient; and the mean, from what all ranks said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.exchange import Compressor, add_frame, finish
from atomo.errors import CodecError, Diverged, FrameError
from atomo.fusion import Bucket, Slot
from atomo.integrations.chunk import bucket_of
from atomo.integrations.message import Kind, Message, read, write
from atomo.kernels.peaks import INFINITY
from atomo.wire import Bytes, read_header
from atomo.wire import Kind as FrameKind

__all__ = ["Encoder", "NotFinite", "mean_of"]

NOTHING = np.empty(0, np.uint8)


class NotFinite(Diverged):
    """A rank's gradient holds NaN or infinity; each rank finds that out."""


@final
@dataclass(frozen=True)
class Encoder:
    """A bucket's flat gradient to a message."""

    codec: Codec[Any]
    compressor: Compressor
    remembers: bool
    """Whether a memory holds anything that a parameter without gradient must leave alone."""

    def message(
        self, bucket: Bucket, flat: Float[Tensor, " n"], peaks: Sequence[int], step: int
    ) -> Bytes:
        """What this rank says, given the bits of the largest magnitude of each parameter's
        gradient. `flat` is scratch space afterwards.

        A parameter whose gradient is zero throughout takes no part: DDP hands such gradients over
        for parameters that were not used, and throws away what comes back for one that no rank
        used. So nothing of a memory is sent with it.
        """
        if max(peaks) >= INFINITY:
            return write(Kind.NOT_FINITE, [one >= INFINITY for one in peaks], NOTHING)
        used = [not self.remembers or one > 0 for one in peaks]
        if not any(used):
            return write(Kind.CODED, used, NOTHING)
        try:
            part = part_of(bucket, used, self.codec)
            frame = self.compressor.compress(part, cut(bucket, part, flat), step)
        except CodecError as error:
            return write(Kind.REFUSED, used, np.frombuffer(str(error).encode(), np.uint8))
        return write(Kind.CODED, used, frame)


def mean_of(
    answers: Sequence[Bytes],
    bucket: Bucket,
    codec: Codec[Any],
    step: int,
    out: Float[Tensor, " n"],
) -> None:
    """The aggregate of what all ranks said of a bucket, in the order of ranks: the same bits on
    every rank.

    Raises:
        NotFinite: a rank's gradient holds NaN or infinity.
        CodecError: a rank could not encode its gradient.
        FrameError: what a rank sent is no message about this bucket.
    """
    out.zero_()
    messages = [read(data, len(bucket.slots)) for data in answers]
    for rank, message in enumerate(messages):
        check_well(rank, message, bucket)
    for rank, message in enumerate(messages):
        if any(message.marked):
            part = part_of(bucket, message.marked, codec)
            check_frame(message.body, part, rank, step)
            add(bucket, part, message.body, out, 1 / len(messages))
    finish(bucket, out)


def check_well(rank: int, message: Message, bucket: Bucket) -> None:
    """Raises what kept a rank from encoding."""
    if message.kind is Kind.REFUSED:
        raise CodecError(f"rank {rank}: {bytes(message.body).decode(errors='replace')}")
    if message.kind is Kind.NOT_FINITE:
        slots = zip(bucket.slots, message.marked, strict=True)
        names = ", ".join(slot.name for slot, marked in slots if marked)
        raise NotFinite(f"rank {rank}: the gradient of {names} is no longer finite")


def check_frame(frame: Bytes, part: Bucket, rank: int, step: int) -> None:
    """Raises FrameError where a rank's frame is of another step or another model."""
    header = read_header(frame)
    found = header.kind, header.step, header.worker, header.layout
    if found != (FrameKind.GRADIENT, step, rank, part.layout):
        raise FrameError(
            f"rank {rank} sent a {header.kind.name} of step {header.step}; this is step {step}, "
            "and model, codec and buckets must be the same on all ranks"
        )


def add(bucket: Bucket, part: Bucket, frame: Bytes, out: Float[Tensor, " n"], scale: float) -> None:
    """Adds `scale` times what a frame of some of a bucket's parameters holds."""
    if part is bucket:
        add_frame(bucket, frame, out, scale)
        return
    decoded = torch.zeros(part.size, device=out.device)
    add_frame(part, frame, decoded, scale)
    places = places_of(bucket)
    for slot in part.slots:
        place = places[slot.name]
        out[place.start : place.stop].add_(decoded[slot.start : slot.stop])


def part_of(bucket: Bucket, marked: Sequence[bool], codec: Codec[Any]) -> Bucket:
    """The bucket of those parameters alone; the same one where that is all of them."""
    if all(marked):
        return bucket
    chosen = [slot for slot, one in zip(bucket.slots, marked, strict=True) if one]
    return bucket_of(bucket.number, tuple((slot.name, slot.shape) for slot in chosen), codec)


def cut(bucket: Bucket, part: Bucket, flat: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    """The flat gradient of a part of a bucket, out of the bucket's."""
    if part is bucket:
        return flat
    places = places_of(bucket)
    return torch.cat([flat[places[s.name].start : places[s.name].stop] for s in part.slots])


def places_of(bucket: Bucket) -> dict[str, Slot]:
    """The slots of a bucket by parameter name."""
    return {slot.name: slot for slot in bucket.slots}
