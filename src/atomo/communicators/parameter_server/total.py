"""The sum of the workers' gradients, decoded straight into place."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import add_frames, batch_of, finish
from atomo.communicators.parameter_server.culprits import (
    Spoilt,
    is_finite,
    not_decodable,
    not_finite,
)
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["Total"]


@final
class Total:
    """Adds up frames bucket by bucket, each bucket in the order of the ranks, batch by batch."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        out: Float[Tensor, " n"],
        workers: int,
        shares: Sequence[float],
        *,
        trusts: bool = False,
    ) -> None:
        """Nothing yet.

        Args:
            buckets: of each gradient.
            out: becomes the sum.
            workers: how many there are in it.
            shares: what each weighs, in the order of ranks; one number: all weigh that.
            trusts: whether somebody has looked for NaN and infinity already.
        """
        self._trusts = trusts
        self._out = out.zero_()
        self._workers, self._shares = workers, tuple(shares)
        self._next = [0] * len(buckets)  # how many workers are in the sum already

    def advance(
        self, bucket: Bucket, arrived: Mapping[int, Mapping[int, Bytes]], order: Sequence[int]
    ) -> None:
        """Adds every frame of one bucket whose turn it is, once its batch is complete.

        Raises:
            Spoilt: some cannot be in a sum, of which nothing is left then.
        """
        out = self._out[bucket.offset : bucket.offset + bucket.size]
        while (first := self._next[bucket.number]) < self._workers:
            last = min(first + batch_of(bucket, out.device), self._workers)
            batch = [worker for worker in order[first:last] if bucket.number in arrived[worker]]
            if len(batch) < last - first:
                return
            frames = {worker: arrived[worker][bucket.number] for worker in batch}
            self._add(bucket, frames, out, first)
            self._next[bucket.number] += len(batch)
            if self._next[bucket.number] == self._workers:
                self._check(
                    bucket, {worker: arrived[worker][bucket.number] for worker in order}, out
                )
                finish(bucket, out)

    def is_of(self, workers: int, shares: Sequence[float]) -> bool:
        """Whether it is of so many that weigh that."""
        return self._workers == workers and self._shares == tuple(shares)

    def _add(
        self, bucket: Bucket, frames: Mapping[int, Bytes], out: Float[Tensor, " n"], first: int
    ) -> None:
        batch = [*frames.values()]
        try:
            if len(self._shares) == 1:
                add_frames(bucket, batch, out, self._shares[0])
                return
            for frame, share in zip(batch, self._shares[first:], strict=False):
                add_frames(bucket, [frame], out, share)
        except FrameError as error:
            raise Spoilt(not_decodable(bucket, frames) or dict.fromkeys(frames, error)) from error

    def _check(self, bucket: Bucket, frames: Mapping[int, Bytes], out: Float[Tensor, " n"]) -> None:
        """No codec has to look at every number of a payload: one that is none is seen here."""
        if not (self._trusts or is_finite(out)) and (found := not_finite(bucket, frames)):
            raise Spoilt(found)
