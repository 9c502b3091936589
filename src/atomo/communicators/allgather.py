"""All-gather: every rank gets every frame, and adds up what all of them decode to.

The sum has the parameter server's order, rank by rank, so that it has its bits. A rank receives
size - 1 frames, which pays where frames are small; any codec will do.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor, add_frame, add_frames, batch_of, finish
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes, Header, Kind, read_header

__all__ = ["Allgather"]


@final
class Allgather(Reduction[Bytes]):
    """Frames of all ranks, decoded as they arrive, in the batches that their codec joins."""

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._collective, self._compressor = collective, compressor

    @staticmethod
    def fitted(codec: Codec[Any]) -> Codec[Any]:
        """Every codec goes with it."""
        return codec

    def encode(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> Bytes:
        return self._compressor.compress(bucket, flat, step)

    def start(self, bucket: Bucket, encoded: Bytes, step: int) -> Finish:
        all_of_them = self._collective
        arriving = all_of_them.gather(encoded, f"bucket {bucket.number} of step {step}")
        ranks, shares = all_of_them.ranks, all_of_them.shares

        def add_all(out: Float[Tensor, " n"]) -> None:
            named = zip(ranks, arriving, strict=True)
            checked = (check(frame, bucket, step, rank) for rank, frame in named)
            if shares:
                for frame, share in zip(checked, shares, strict=True):
                    add_frames(bucket, [frame], out, share)
            else:
                add_alike(bucket, checked, out, 1 / len(ranks))
            finish(bucket, out)

        return add_all

    def take_back(self, bucket: Bucket, encoded: Bytes, device: torch.device) -> None:
        sent = torch.zeros(bucket.size)
        add_frame(bucket, encoded, sent, 1.0)
        self._compressor.keep(bucket, sent.to(device))


def add_alike(
    bucket: Bucket, frames: Iterable[Bytes], out: Float[Tensor, " n"], share: float
) -> None:
    """Adds frames that weigh the same."""
    arriving = iter(frames)
    while batch := list(islice(arriving, batch_of(bucket, out.device))):
        add_frames(bucket, batch, out, share)


def check(frame: Bytes, bucket: Bucket, step: int, rank: int) -> Bytes:
    """The frame. Raises FrameError unless it is that bucket of that step of that rank."""
    header = read_header(frame)
    expected = Header(Kind.GRADIENT, step, rank + 1, bucket.number, bucket.layout_hash)
    if header != expected:
        raise FrameError(
            f"rank {rank} sent {header.kind.name} {header.bucket} of step {header.step} where "
            f"bucket {bucket.number} of step {step} was expected, or in another layout: do all "
            "hosts run the same version with the same options?"
        )
    return frame
