"""The sum of the workers' gradients, decoded straight into place."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import add_frames, batch_of, finish
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["Total"]


@final
class Total:
    """Adds up frames bucket by bucket, each bucket in the order of the ranks, batch by batch."""

    def __init__(
        self, buckets: Sequence[Bucket], out: Float[Tensor, " n"], workers: int, share: float
    ) -> None:
        self._out = out.zero_()
        self._workers, self._share = workers, share
        self._next = [0] * len(buckets)  # how many workers are in the sum already

    def advance(
        self, bucket: Bucket, arrived: Mapping[int, Mapping[int, Bytes]], order: Sequence[int]
    ) -> None:
        """Adds every frame of one bucket whose turn it is, once its batch is complete."""
        out = self._out[bucket.offset : bucket.offset + bucket.size]
        while (first := self._next[bucket.number]) < self._workers:
            last = min(first + batch_of(bucket, out.device), self._workers)
            batch = [worker for worker in order[first:last] if bucket.number in arrived[worker]]
            if len(batch) < last - first:
                return
            frames = [arrived[worker][bucket.number] for worker in batch]
            add_frames(bucket, frames, out, self._share)
            self._next[bucket.number] += len(batch)
            if self._next[bucket.number] == self._workers:
                finish(bucket, out)
