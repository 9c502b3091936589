"""All-gather: every rank gets the frames of all ranks, decodes them and adds them up.

The sum has the order of ranks, as at the parameter server, and so the same bits. A rank receives
size - 1 frames, so that the reduction suits small frames. It works with every codec.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.errors import FrameError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor, add_frame, add_frames, batch_of, finish
from atomo.exchange.engine.announcements import (
    Announced,
    add_subset,
    check_encoded,
    encode_used,
    read_announcements,
)
from atomo.fusion import Bucket
from atomo.fusion.buckets import subset
from atomo.wire import Bytes, Header, Kind, read_header

__all__ = ["Allgather", "AnnouncedAllgather"]


@final
class AnnouncedAllgather(Reduction[Bytes, Sequence[Bytes]]):
    """An announcement of each rank, followed by the frame of the parameters that the rank used."""

    accepts_gaps: ClassVar[bool] = True

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        return codec

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Bytes:
        return self.message(encode_used(bucket, flat, step, usage, self._compressor), step)

    def message(self, announced: Announced[list[Any]], step: int) -> Bytes:
        """Returns an announcement, followed by its frame if any parameter was used."""
        if announced.encoded is None:
            return announced.announcement
        part, payloads = announced.part, announced.encoded
        frame = self._compressor.frame(part, payloads, step, announced.device)
        return np.concatenate([announced.announcement, frame])

    def exchange(self, bucket: Bucket, encoded: Bytes, step: int) -> Sequence[Bytes]:
        # Read to the end here: the collectives of torch.distributed have one thread.
        return [*self._collective.gather(encoded, f"bucket {bucket.number} of step {step}")]

    def decode(
        self, bucket: Bucket, received: Sequence[Bytes], step: int, out: Float[Tensor, " n"]
    ) -> None:
        out.zero_()
        announcements = read_announcements(received, bucket)
        check_encoded(announcements, bucket)
        share = 1 / len(received)
        numbered = [(rank, a) for rank, a in enumerate(announcements) if any(a.marked)]
        for marked, alike in groupby(numbered, lambda pair: pair[1].marked):
            part = subset(bucket, marked)
            frames = (check_frame(a.body, part, step, rank, rank) for rank, a in alike)
            add_part(bucket, part, frames, out, share)
        finish(bucket, out)

    def sent_bytes(self, encoded: Bytes, received: Sequence[Bytes]) -> int:
        del received
        return encoded.size


@final
class Allgather(Reduction[Bytes, Iterator[Bytes]]):
    """Frames of all ranks, decoded as they arrive, in the batches of their codec."""

    announced: ClassVar[type[Reduction[Any, Any]] | None] = AnnouncedAllgather
    gathers: ClassVar[bool] = True

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        """Returns the codec: every codec fits."""
        return codec

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Bytes:
        del usage
        return self._compressor.compress(bucket, flat, step)

    def exchange(self, bucket: Bucket, encoded: Bytes, step: int) -> Iterator[Bytes]:
        return self._collective.gather(encoded, f"bucket {bucket.number} of step {step}")

    def decode(
        self, bucket: Bucket, received: Iterator[Bytes], step: int, out: Float[Tensor, " n"]
    ) -> None:
        out.zero_()
        ranks, shares = self._collective.ranks, self._collective.shares
        numbered = zip(ranks, received, strict=True)
        frames = (check_frame(frame, bucket, step, r, r + 1) for r, frame in numbered)
        if shares:
            for frame, share in zip(frames, shares, strict=True):
                add_frames(bucket, [frame], out, share)
        else:
            add_alike(bucket, frames, out, 1 / len(ranks))
        finish(bucket, out)

    def sent_bytes(self, encoded: Bytes, received: Iterator[Bytes]) -> int:
        del received
        return encoded.size

    def take_back(self, bucket: Bucket, encoded: Bytes, device: torch.device) -> None:
        sent = torch.zeros(bucket.size)
        add_frame(bucket, encoded, sent, 1.0)
        self._compressor.keep(bucket, sent.to(device))


def add_part(
    bucket: Bucket,
    part: Bucket,
    frames: Iterable[Bytes],
    out: Float[Tensor, " n"],
    share: float,
) -> None:
    """Adds frames of some parameters of a bucket, in the order of ranks."""
    if part is bucket:
        add_alike(bucket, frames, out, share)
        return
    arriving = iter(frames)
    while batch := list(islice(arriving, batch_of(part, out.device))):
        decoded = torch.zeros(part.size, device=out.device)
        add_frames(part, batch, decoded, share)
        add_subset(bucket, part, decoded, out)


def add_alike(
    bucket: Bucket, frames: Iterable[Bytes], out: Float[Tensor, " n"], share: float
) -> None:
    """Adds frames of equal weight, in the order of ranks: equal runs give equal bits."""
    arriving = iter(frames)
    while batch := list(islice(arriving, batch_of(bucket, out.device))):
        add_frames(bucket, batch, out, share)


def check_frame(frame: Bytes, bucket: Bucket, step: int, rank: int, worker: int) -> Bytes:
    """Returns a frame of a rank.

    Args:
        frame: the bytes of the frame.
        bucket: the expected bucket.
        step: the expected step.
        rank: the sender.
        worker: the worker number in frames of this rank.

    Raises:
        FrameError: the frame is of another kind, bucket, layout, step or worker.
    """
    header = read_header(frame)
    if header != Header(Kind.GRADIENT, step, worker, bucket.number, bucket.layout_hash):
        raise FrameError(
            f"rank {rank} sent {header.kind.name} {header.bucket} of step {header.step} where "
            f"bucket {bucket.number} of step {step} was expected, or in another layout: do all "
            "hosts run the same version with the same options, model and buckets?"
        )
    return frame
