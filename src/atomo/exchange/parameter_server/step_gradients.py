"""Gradients of one step as they arrive."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.ordered_sum import OrderedSum
from atomo.exchange.report import MAX_IMAGES, Report
from atomo.fusion import Bucket
from atomo.wire import Bytes, unpack

__all__ = ["StepGradients"]


@final
class StepGradients:
    """Sum of the first `needed` complete gradients of a step.

    If all workers are needed, each bucket is added as soon as it arrives. If a worker dies before
    its gradient is complete, the sum starts again without it. A complete gradient counts even if
    its worker dies.
    """

    def __init__(
        self,
        step: int,
        buckets: Sequence[Bucket],
        out: Float[Tensor, " n"],
        workers: Sequence[int],
        needed: int,
        late_counts: bool,
        images: int = 0,
    ) -> None:
        """Starts without gradients.

        Args:
            step: number of the step.
            buckets: of each gradient.
            out: receives the weighted sum.
            workers: workers of the step, in rank order.
            needed: number of gradients that close the step, or all if fewer workers are left.
            late_counts: True if late gradients enter a later step, so that each gradient has the
                weight 1 / the number of all workers; False for 1 / the number in the sum.
            images: samples of the step; 0 if unknown.
        """
        self.step, self.reports = step, dict[int, Report]()
        self.shares: tuple[float, ...] = ()
        """Weight of each gradient in rank order, or one weight for all; known once closed."""
        self._buckets, self._out = buckets, out
        self._max_needed, self._late_counts = needed, late_counts
        self._max_images = images or MAX_IMAGES
        self._step_workers = {*workers}  # workers that share its samples, without dead ones
        self._arrived: dict[int, dict[int, Bytes]] = {worker: {} for worker in workers}
        self._sum = self._new_sum()

    @property
    def needed(self) -> int:
        """Number of gradients that close the step."""
        return min(self._max_needed, len(self._arrived))

    @property
    def missing(self) -> list[int]:
        """Workers without a complete gradient."""
        return [worker for worker in self._arrived if worker not in self.reports]

    @property
    def possible(self) -> int:
        """Largest possible number of gradients."""
        return len(self._arrived)

    def add(self, worker: int, bucket: int, frame: Bytes) -> None:
        """Adds a bucket of a gradient.

        Raises:
            FrameError: the bucket arrived twice.
            UndecodableFrames: this frame, or an earlier one, cannot be decoded.
        """
        if self._arrived[worker].setdefault(bucket, frame) is not frame:
            raise FrameError(
                f"worker {worker} sent bucket {bucket} of step {self.step} twice", FrameFault.TWICE
            )
        if self.needed == len(self._arrived):
            self._sum.advance(self._buckets[bucket], self._arrived, [*self._arrived])

    def complete(self, worker: int, frame: Bytes) -> None:
        """Marks a worker's gradient as complete, with the report that arrived last.

        Raises:
            FrameError: buckets are missing, or a number of the report is out of range.
        """
        count = len(self._arrived[worker])
        if count != len(self._buckets):
            raise FrameError(
                f"worker {worker} reported step {self.step} complete after {count} of "
                f"{len(self._buckets)} buckets",
                FrameFault.INCOMPLETE,
            )
        self.reports[worker] = Report.of(unpack(frame, [Report.field()])[0], self._max_images)

    @property
    def has_no_workers(self) -> bool:
        """True if no gradient of the step can still count."""
        return not self._arrived

    def drop(self, worker: int) -> None:
        """Removes a dead worker; a complete gradient still counts."""
        if worker not in self.reports:
            self._step_workers.discard(worker)
            self.exclude(worker)

    def exclude(self, worker: int) -> bool:
        """Removes a worker's gradient, and returns True if it was complete."""
        was_complete = self.reports.pop(worker, None) is not None
        if self._arrived.pop(worker, None) is not None:
            self._sum = self._new_sum()
        return was_complete

    def close(self, images: Mapping[int, int]) -> Mapping[int, Mapping[int, Bytes]]:
        """Adds the remaining frames, and returns the frames in the sum by worker in rank order.

        Args:
            images: assigned samples of each gradient, by worker.

        Raises:
            UndecodableFrames: some frames cannot be decoded.
        """
        order = sorted(self.reports)
        self.shares = self._shares_of([images[worker] for worker in order])
        if not self._sum.is_of(len(order), self.shares):
            self._sum = OrderedSum(self._buckets, self._out, len(order), self.shares)
        for bucket in self._buckets:
            self._sum.advance(bucket, self._arrived, order)
        return {worker: self._arrived[worker] for worker in order}

    def _shares_of(self, images: Sequence[int]) -> tuple[float, ...]:
        """Returns the weights of gradients over so many images; one number if all are equal."""
        share, mean = self._share_of(len(images)), sum(images) / len(images)
        return (share,) if len({*images}) < 2 else tuple(share * count / mean for count in images)

    def _share_of(self, count: int) -> float:
        """Returns the weight of each of `count` gradients. With `late_counts` this is the weight
        among all workers, since gradients outside the sum enter a later step.
        """
        return 1 / max(1, len(self._step_workers) if self._late_counts else count)

    def _new_sum(self) -> OrderedSum:
        count = self.needed
        return OrderedSum(self._buckets, self._out, count, [self._share_of(count)])
