"""Sum of the workers' gradients, decoded in place."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError, FrameFault
from atomo.exchange.compressor import add_frame, add_frames, batch_of, finish
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["OrderedSum", "UndecodableFrames"]


@final
class OrderedSum:
    """Sum of frames, bucket by bucket, each bucket in rank order and in batches."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        out: Float[Tensor, " n"],
        workers: int,
        shares: Sequence[float],
        *,
        checked: bool = False,
    ) -> None:
        """Starts at zero.

        Args:
            buckets: of each gradient.
            out: receives the sum.
            workers: number of gradients in the sum.
            shares: weight of each gradient in rank order, or one weight for all.
            checked: True if the gradients were already checked for NaN and infinity.
        """
        self._checked = checked
        self._out = out.zero_()
        self._workers, self._shares = workers, tuple(shares)
        self._next = [0] * len(buckets)  # workers already in the sum, by bucket

    def advance(
        self, bucket: Bucket, arrived: Mapping[int, Mapping[int, Bytes]], order: Sequence[int]
    ) -> None:
        """Adds the next frames of one bucket in rank order, as far as batches are complete.

        Raises:
            UndecodableFrames: some frames cannot be added; the sum is useless then.
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
        """True for a sum of so many gradients with these shares."""
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
        """Checks the sum for NaN and infinity, which a codec need not detect."""
        if not (self._checked or is_finite(out)) and (errors := not_finite(bucket, frames)):
            raise UndecodableFrames(errors)


@final
class UndecodableFrames(FrameError):
    """Frames that cannot be decoded, or whose gradients hold NaN or infinity."""

    def __init__(self, errors: Mapping[int, FrameError]) -> None:
        super().__init__("; ".join(f"worker {worker}: {error}" for worker, error in errors.items()))
        self.errors = errors
        """Error by worker."""


def is_finite(flat: Float[Tensor, " n"]) -> bool:
    """True if no entry is NaN or infinite; the sum decides, unless it overflows itself."""
    return math.isfinite(float(flat.sum())) or bool(flat.isfinite().all())


def not_decodable(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Returns the errors of the frames of a bucket that cannot be decoded, by worker."""
    return collect_errors(bucket, frames, lambda _: None)


def not_finite(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Returns the errors of the gradients of a bucket with NaN or infinity, by worker; empty if
    only their sum overflows.
    """

    def check(flat: Float[Tensor, " n"]) -> None:
        if not is_finite(flat):
            raise FrameError(
                f"bucket {bucket.number}: the gradient holds NaN or infinity", FrameFault.NUMBERS
            )

    return collect_errors(bucket, frames, check)


def collect_errors(
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
