"""The sum of the workers' gradients, decoded straight into place."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.compressor import add_frame, add_frames, batch_of, finish
from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["OrderedSum", "UndecodableFrames"]


@final
class OrderedSum:
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
            UndecodableFrames: some cannot be in a sum, of which nothing is left then.
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
            raise UndecodableFrames(
                not_decodable(bucket, frames) or dict.fromkeys(frames, error)
            ) from error

    def _check(self, bucket: Bucket, frames: Mapping[int, Bytes], out: Float[Tensor, " n"]) -> None:
        """No codec has to look at every number of a payload: one that is none is seen here."""
        if not (self._trusts or is_finite(out)) and (errors := not_finite(bucket, frames)):
            raise UndecodableFrames(errors)


@final
class UndecodableFrames(FrameError):
    """Frames that cannot be decoded, or whose gradients hold NaN or infinity."""

    def __init__(self, by: Mapping[int, FrameError]) -> None:
        super().__init__("; ".join(f"worker {worker}: {error}" for worker, error in by.items()))
        self.by = by
        """What is wrong, by worker."""


def is_finite(flat: Float[Tensor, " n"]) -> bool:
    """Whether no entry is NaN or infinite; the sum tells, unless it overflows by itself."""
    return math.isfinite(float(flat.sum())) or bool(flat.isfinite().all())


def not_decodable(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Whose frames of a bucket are refused, and why."""
    return refused(bucket, frames, lambda _: None)


def not_finite(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Whose gradients of a bucket hold NaN or infinity; nobody's, where only their sum does."""

    def check(flat: Float[Tensor, " n"]) -> None:
        if not is_finite(flat):
            raise FrameError(
                f"bucket {bucket.number}: the gradient holds NaN or infinity", FrameFault.NUMBERS
            )

    return refused(bucket, frames, check)


def refused(
    bucket: Bucket, frames: Mapping[int, Bytes], check: Callable[[Float[Tensor, " n"]], None]
) -> dict[int, FrameError]:
    errors, scratch = dict[int, FrameError](), torch.empty(bucket.size)
    for worker, frame in frames.items():
        try:
            add_frame(bucket, frame, scratch.zero_(), 1.0)
            check(scratch)
        except FrameError as error:
            errors[worker] = error
    return errors
