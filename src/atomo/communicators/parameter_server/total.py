"""The sum of the workers' gradients, decoded straight into place."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import add_frame, finish
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["Total"]


@final
class Total:
    """Adds up frames bucket by bucket, each bucket in the order of the ranks."""

    def __init__(
        self, buckets: Sequence[Bucket], out: Float[Tensor, " n"], workers: int, share: float
    ) -> None:
        self._buckets = buckets
        self._out = out.zero_()
        self._workers, self._share = workers, share
        self._next = [0] * len(buckets)  # how many workers are in the sum already

    def advance(self, arrived: Mapping[int, Mapping[int, Bytes]], order: Sequence[int]) -> None:
        """Adds every frame whose turn it is."""
        for bucket in self._buckets:
            out = self._out[bucket.offset : bucket.offset + bucket.size]
            while self._next[bucket.number] < len(order):
                frame = arrived[order[self._next[bucket.number]]].get(bucket.number)
                if frame is None:
                    break
                add_frame(bucket, frame, out, self._share)
                self._next[bucket.number] += 1
                if self._next[bucket.number] == self._workers:
                    finish(bucket, out)
