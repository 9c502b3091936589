"""What one rank says of a bucket, from its gradient; and the mean, from what all ranks said."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import Compressor, add_frames, batch_of, finish
from atomo.errors import CodecError, Diverged, FrameError
from atomo.fusion import Bucket, Slot
from atomo.integrations.chunk import Codecs, bucket_of
from atomo.integrations.message import Kind, Message, read, write
from atomo.kernels.peaks import INFINITY
from atomo.wire import Bytes, read_header
from atomo.wire import Kind as FrameKind

__all__ = ["Coded", "Encoder", "NotFinite", "mean_of", "put"]

NOTHING = np.empty(0, np.uint8)


class NotFinite(Diverged):
    """A rank's gradient holds NaN or infinity; each rank finds that out."""


@final
@dataclass(frozen=True)
class Coded:
    """What a rank has encoded of the parameters of a bucket that it used."""

    part: Bucket
    """These parameters alone."""
    payloads: Sequence[Any]
    """Of each part of that."""
    device: torch.device
    """Where the gradient was."""

    @property
    def nbytes(self) -> int:
        """What a rank gives for the sum of it."""
        pairs = zip(self.part.parts, self.payloads, strict=True)
        return sum(one.nbytes for part, load in pairs for one in part.codec.sections(load))


@final
@dataclass(frozen=True)
class Encoder:
    """A bucket's flat gradient to a message."""

    codecs: Codecs
    compressor: Compressor
    remembers: bool
    """Whether a memory holds anything that a parameter without gradient must leave alone."""

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], peaks: Sequence[int], step: int
    ) -> tuple[Bytes, Coded | None]:
        """What this rank says before a frame, and what belongs in that, if it has one.

        A parameter whose gradient is zero throughout takes no part: DDP hands such gradients over
        for parameters that were not used, and throws away what comes back for one that no rank
        used. So nothing of a memory is sent with it.

        Args:
            bucket: of all these parameters.
            flat: their gradient, which is scratch space afterwards.
            peaks: the bits of the largest magnitude of each.
            step: the number of the step.
        """
        used = self._used(peaks)
        if max(peaks) >= INFINITY or not any(used):
            return self.announced(peaks), None
        try:
            part = part_of(bucket, used, self.codecs)
            payloads = self.compressor.encode(part, cut(bucket, part, flat), step)
        except CodecError as error:
            return write(Kind.REFUSED, used, np.frombuffer(str(error).encode(), np.uint8)), None
        return write(Kind.CODED, used, NOTHING), Coded(part, payloads, flat.device)

    def announced(self, peaks: Sequence[int]) -> Bytes:
        """What this rank says where it has no frame: what it used, or what is not finite."""
        if max(peaks) >= INFINITY:
            return write(Kind.NOT_FINITE, [one >= INFINITY for one in peaks], NOTHING)
        return write(Kind.CODED, self._used(peaks), NOTHING)

    def _used(self, peaks: Sequence[int]) -> list[bool]:
        return [not self.remembers or one > 0 for one in peaks]

    def framed(self, said: Bytes, coded: Coded | None, step: int) -> Bytes:
        """The whole message of what `encode` returned."""
        if coded is None:
            return said
        frame = self.compressor.frame(coded.part, coded.payloads, step, coded.device)
        return np.concatenate([said, frame])


def mean_of(
    answers: Sequence[Bytes],
    bucket: Bucket,
    codecs: Codecs,
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
    used = [(rank, message) for rank, message in enumerate(messages) if any(message.marked)]
    for marked, same in groupby(used, lambda one: one[1].marked):
        part, share = part_of(bucket, marked, codecs), 1 / len(messages)
        checked = (check_frame(message.body, part, rank, step) for rank, message in same)
        while frames := list(islice(checked, batch_of(part, out.device))):
            add(bucket, part, frames, out, share)
    finish(bucket, out)


def check_well(rank: int, message: Message, bucket: Bucket) -> None:
    """Raises what kept a rank from encoding."""
    if message.kind is Kind.REFUSED:
        raise CodecError(f"rank {rank}: {bytes(message.body).decode(errors='replace')}")
    if message.kind is Kind.NOT_FINITE:
        slots = zip(bucket.slots, message.marked, strict=True)
        names = ", ".join(slot.name for slot, marked in slots if marked)
        raise NotFinite(f"rank {rank}: the gradient of {names} is no longer finite")


def check_frame(frame: Bytes, part: Bucket, rank: int, step: int) -> Bytes:
    """The frame. Raises FrameError where it is of another step or another model."""
    header = read_header(frame)
    found = header.kind, header.step, header.worker, header.layout_hash
    if found != (FrameKind.GRADIENT, step, rank, part.layout_hash):
        raise FrameError(
            f"rank {rank} sent a {header.kind.name} of step {header.step}; this is step {step}, "
            "and model, codec and buckets must be the same on all ranks"
        )
    return frame


def add(
    bucket: Bucket, part: Bucket, frames: Sequence[Bytes], out: Float[Tensor, " n"], scale: float
) -> None:
    """Adds `scale` times what each frame of some of a bucket's parameters holds."""
    if part is bucket:
        add_frames(bucket, frames, out, scale)
        return
    decoded = torch.zeros(part.size, device=out.device)
    add_frames(part, frames, decoded, scale)
    put(bucket, part, decoded, out)


def put(
    bucket: Bucket, part: Bucket, decoded: Float[Tensor, " m"], out: Float[Tensor, " n"]
) -> None:
    """Adds what belongs to some of a bucket's parameters."""
    places = places_of(bucket)
    for slot in part.slots:
        place = places[slot.name]
        out[place.start : place.stop].add_(decoded[slot.start : slot.stop])


def part_of(bucket: Bucket, marked: Sequence[bool], codecs: Codecs) -> Bucket:
    """The bucket of those parameters alone; the same one where that is all of them."""
    if all(marked):
        return bucket
    chosen = [slot for slot, one in zip(bucket.slots, marked, strict=True) if one]
    return bucket_of(bucket.number, tuple((slot.name, slot.shape) for slot in chosen), codecs)


def cut(bucket: Bucket, part: Bucket, flat: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
    """The flat gradient of a part of a bucket, out of the bucket's."""
    if part is bucket:
        return flat
    places = places_of(bucket)
    return torch.cat([flat[places[s.name].start : places[s.name].stop] for s in part.slots])


def places_of(bucket: Bucket) -> dict[str, Slot]:
    """The slots of a bucket by parameter name."""
    return {slot.name: slot for slot in bucket.slots}
