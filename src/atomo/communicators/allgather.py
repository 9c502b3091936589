"""All-gather: every rank gets every frame, and adds up what all of them decode to.

The sum has the parameter server's order, rank by rank, so that it has its bits. A rank receives
size - 1 frames, which pays where frames are small; any codec will do.
"""

from itertools import islice
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor, add_frames, batch_of, finish
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
        arriving = self._collective.gather(encoded, f"bucket {bucket.number} of step {step}")
        share = 1 / self._collective.size

        def add_all(out: Float[Tensor, " n"]) -> None:
            checked = (check(frame, bucket, step, rank) for rank, frame in enumerate(arriving))
            while batch := list(islice(checked, batch_of(bucket, out.device))):
                add_frames(bucket, batch, out, share)
            finish(bucket, out)

        return add_all


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
