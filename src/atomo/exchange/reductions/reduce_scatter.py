"""Reduce-scatter: every rank gets the mean of its own pieces of the gradient.

Each parameter is cut into one piece for each rank, and the pieces lie in one bucket. A rank encodes
the pieces of each rank into one frame, its own pieces included, so that all gradients have the same
kind of error. An all-to-all carries the frames, and each rank decodes and adds up its own pieces. A
rank receives 1 / size of the bytes of an all-gather.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.codecs.shared_scale import shared_scale_codec
from atomo.errors import CodecError, ConfigError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.compressor import Compressor, finish
from atomo.exchange.engine.announcements import (
    AnnouncementKind,
    announce,
    check_encoded,
    cut_out,
    read_announcements,
    write_announcement,
)
from atomo.exchange.reductions.allgather import add_part, check_frame
from atomo.fusion import Bucket
from atomo.fusion.buckets import subset
from atomo.wire import Bytes

__all__ = ["ReduceScatter", "piece_name", "split_piece"]

PIECE: Final = ", piece "  # in the name of a piece
MOST: Final = 4096  # of the owners of buckets in the cache


def piece_name(parameter: str, rank: int) -> str:
    """Returns the name of a rank's piece of a parameter.

    >>> piece_name("layer.weight", 2)
    'layer.weight, piece 2'
    """
    return f"{parameter}{PIECE}{rank}"


def split_piece(name: str) -> tuple[str, int]:
    """Returns the parameter and the rank of a piece: the inverse of `piece_name`."""
    parameter, _, rank = name.rpartition(PIECE)
    return parameter, int(rank)


@final
@dataclass(frozen=True)
class Pieces:
    """The messages of one rank: for each rank an announcement and a frame of its pieces."""

    messages: Sequence[Bytes]


@final
class ReduceScatter(Reduction[Pieces, Sequence[Bytes]]):
    """Frames of each rank's pieces, sent to that rank. The mean of other pieces is 0."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @classmethod
    def adapt_codec(cls, codec: Codec[Any]) -> Codec[Any]:
        if shared_scale_codec(codec):
            raise ConfigError(
                f"code {codec!s} has one scale for all ranks, which reduce_scatter=True does not "
                "agree on: give another codec, such as qsgd"
            )
        return codec

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Pieces:
        # All ranks read the announcement of the whole bucket, so that all of them raise its error.
        announcement, used = announce(bucket, usage, self._compressor)
        try:
            frames = [
                self._frame(bucket, flat, step, of_rank(bucket, rank, tuple(used)))
                for rank in range(self._collective.size)
            ]
        except CodecError as error:
            reason = np.frombuffer(str(error).encode(), np.uint8)
            refusal = write_announcement(AnnouncementKind.REFUSED, used, reason)
            return Pieces([refusal] * self._collective.size)
        return Pieces([np.concatenate([announcement, frame]) for frame in frames])

    def exchange(self, bucket: Bucket, encoded: Pieces, step: int) -> Sequence[Bytes]:
        label = f"the pieces of bucket {bucket.number} of step {step}"
        return self._collective.swap(encoded.messages, label)

    def decode(
        self, bucket: Bucket, received: Sequence[Bytes], step: int, out: Float[Tensor, " n"]
    ) -> None:
        out.zero_()
        announcements = read_announcements(received, bucket)
        check_encoded(announcements, bucket)
        rank, share = self._collective.rank, 1 / len(received)
        for used, alike in groupby(enumerate(announcements), lambda pair: pair[1].marked):
            marked = of_rank(bucket, rank, used)
            if not any(marked):
                continue
            part = subset(bucket, marked)
            frames = (check_frame(a.body, part, step, r, r) for r, a in alike)
            add_part(bucket, part, frames, out, share)
        finish(bucket, out)

    def sent_bytes(self, encoded: Pieces, received: Sequence[Bytes]) -> int:
        """Returns the bytes of all messages, with that of this rank to itself: the ratio is then
        that of the codec, for any number of ranks.
        """
        del received
        return sum(message.size for message in encoded.messages)

    def _frame(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, marked: tuple[bool, ...]
    ) -> Bytes:
        """Returns the frame of the marked pieces; no bytes if there are none."""
        if not any(marked):
            return np.empty(0, np.uint8)
        part = subset(bucket, marked)
        return self._compressor.compress(part, cut_out(bucket, part, flat), step)


@lru_cache(MOST)
def of_rank(bucket: Bucket, rank: int, used: tuple[bool, ...]) -> tuple[bool, ...]:
    """Marks the used pieces of a rank, in the order of the bucket."""
    owners = (split_piece(slot.name)[1] for slot in bucket.slots)
    return tuple(own and owner == rank for own, owner in zip(used, owners, strict=True))
