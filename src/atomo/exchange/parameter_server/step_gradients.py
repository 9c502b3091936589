"""Gradients of one step as they arrive."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.ordered_sum import OrderedSum
from atomo.exchange.report import MOST_IMAGES, Report
from atomo.fusion import Bucket
from atomo.wire import Bytes, unpack

__all__ = ["StepGradients"]


@final
class StepGradients:
    """Adds up the gradients of the first `needed` workers that are complete.

    Where that is all of them, each bucket is added as soon as it comes. A worker that is gone
    before it is complete has no part in the sum, which then begins anew; who was complete counts.
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
            step: whose gradients these are.
            buckets: of each gradient.
            out: becomes their mean.
            workers: who may take part, in rank order.
            needed: how many close the step, if so many are left.
            late_counts: whether each weighs what it would in a step of all workers, since what is
                late comes back; else what it does among those that count.
            images: of the step; 0: not known.
        """
        self.step, self.reports = step, dict[int, Report]()
        self.shares: tuple[float, ...] = ()
        """Weight of each gradient in rank order, or one weight for all; known once closed."""
        self._buckets, self._out = buckets, out
        self._most, self._late_counts = needed, late_counts
        self._most_images = images or MOST_IMAGES
        self._sharing = {*workers}  # its images, of those that are left
        self._arrived: dict[int, dict[int, Bytes]] = {worker: {} for worker in workers}
        self._sum = self._new_sum()

    @property
    def needed(self) -> int:
        """Number of gradients that close the step."""
        return min(self._most, len(self._arrived))

    @property
    def missing(self) -> list[int]:
        """Workers whose gradient is not complete yet."""
        return [worker for worker in self._arrived if worker not in self.reports]

    @property
    def possible(self) -> int:
        """Largest possible number of gradients."""
        return len(self._arrived)

    def add(self, worker: int, bucket: int, frame: Bytes) -> None:
        """Adds a bucket of a gradient.

        Raises:
            FrameError: it came twice.
            UndecodableFrames: it, or another that came before, cannot be added up.
        """
        if self._arrived[worker].setdefault(bucket, frame) is not frame:
            raise FrameError(
                f"worker {worker} sent bucket {bucket} of step {self.step} twice", FrameFault.TWICE
            )
        if self.needed == len(self._arrived):
            self._sum.advance(self._buckets[bucket], self._arrived, [*self._arrived])

    def complete(self, worker: int, frame: Bytes) -> None:
        """Takes a worker's report: its gradient is complete.

        Raises:
            FrameError: buckets are missing, or numbers are impossible.
        """
        count = len(self._arrived[worker])
        if count != len(self._buckets):
            raise FrameError(
                f"worker {worker} reported step {self.step} complete after {count} of "
                f"{len(self._buckets)} buckets",
                FrameFault.INCOMPLETE,
            )
        self.reports[worker] = Report.of(unpack(frame, [Report.field()])[0], self._most_images)

    @property
    def has_no_workers(self) -> bool:
        """True if no worker is left whose gradient could count."""
        return not self._arrived

    def drop(self, worker: int) -> None:
        """Removes a dead worker; a complete gradient still counts."""
        if worker not in self.reports:
            self._sharing.discard(worker)
            self.exclude(worker)

    def exclude(self, worker: int) -> bool:
        """Removes a worker's gradient, and returns True if it was complete."""
        whole = self.reports.pop(worker, None) is not None
        if self._arrived.pop(worker, None) is not None:
            self._sum = self._new_sum()
        return whole

    def close(self, images: Mapping[int, int]) -> Mapping[int, Mapping[int, Bytes]]:
        """Adds the remaining frames, and returns the frames in the sum by worker in rank order.

        Args:
            images: of each gradient, by worker, as the master asked for them.

        Raises:
            UndecodableFrames: some cannot be added up.
        """
        order = sorted(self.reports)
        self.shares = self._shares_of([images[worker] for worker in order])
        if not self._sum.is_of(len(order), self.shares):
            self._sum = OrderedSum(self._buckets, self._out, len(order), self.shares)
        for bucket in self._buckets:
            self._sum.advance(bucket, self._arrived, order)
        return {worker: self._arrived[worker] for worker in order}

    def _shares_of(self, images: Sequence[int]) -> tuple[float, ...]:
        """Returns the weights of gradients of so many images; one number if all are equal."""
        share, mean = self._share_of(len(images)), sum(images) / len(images)
        return (share,) if len({*images}) < 2 else tuple(share * count / mean for count in images)

    def _share_of(self, count: int) -> float:
        """Returns the weight of each of so many gradients. With `late_counts`, gradients outside
        the sum come back later, so that each has its weight among all workers.
        """
        return 1 / max(1, len(self._sharing) if self._late_counts else count)

    def _new_sum(self) -> OrderedSum:
        count = self.needed
        return OrderedSum(self._buckets, self._out, count, [self._share_of(count)])
