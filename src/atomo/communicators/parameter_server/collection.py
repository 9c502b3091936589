"""The gradients of one step, as they come in."""

from collections.abc import Mapping, Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.total import Total
from atomo.communicators.report import Report
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.wire import Bytes, unpack

__all__ = ["Collection"]


@final
class Collection:
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
    ) -> None:
        """Nothing yet.

        Args:
            step: whose gradients these are.
            buckets: of each gradient.
            out: becomes their mean.
            workers: who may take part, in rank order.
            needed: how many close the step, if so many are left.
            late_counts: whether each weighs what it would in a step of all workers, since what is
                late comes back; else what it does among those that count.
        """
        self.step, self.reports = step, dict[int, Report]()
        self._buckets, self._out = buckets, out
        self._most, self._late_counts = needed, late_counts
        self._arrived: dict[int, dict[int, Bytes]] = {worker: {} for worker in workers}
        self._total = self._anew()

    @property
    def needed(self) -> int:
        """How many close the step."""
        return min(self._most, len(self._arrived))

    @property
    def missing(self) -> list[int]:
        """Who may still complete its gradient."""
        return [worker for worker in self._arrived if worker not in self.reports]

    @property
    def share(self) -> float:
        """The weight of each gradient in the sum."""
        weighed = len(self._arrived) if self._late_counts else self.needed
        return 1 / max(1, weighed)  # all may be gone

    @property
    def is_complete(self) -> bool:
        """Whether the step can be closed."""
        return 0 < self.needed <= len(self.reports)

    def add(self, worker: int, bucket: int, frame: Bytes) -> None:
        """The gradient of one bucket."""
        self._arrived[worker][bucket] = frame
        if self.needed == len(self._arrived):
            self._total.advance(self._buckets[bucket], self._arrived, [*self._arrived])

    def complete(self, worker: int, frame: Bytes) -> None:
        """The report of a worker: nothing more comes of it.

        Raises:
            FrameError: buckets are missing.
        """
        count = len(self._arrived[worker])
        if count != len(self._buckets):
            raise FrameError(
                f"worker {worker} reported step {self.step} complete after {count} of "
                f"{len(self._buckets)} buckets"
            )
        self.reports[worker] = Report.of(unpack(frame, [Report.field()])[0])

    def drop(self, worker: int) -> None:
        """A worker is gone."""
        if worker in self._arrived and worker not in self.reports:
            del self._arrived[worker]
            self._total = self._anew()

    def close(self) -> Mapping[int, Mapping[int, Bytes]]:
        """Adds what is not in the sum yet; the frames that are in it, by worker, in rank order."""
        order = sorted(self.reports)
        for bucket in self._buckets:
            self._total.advance(bucket, self._arrived, order)
        return {worker: self._arrived[worker] for worker in order}

    def _anew(self) -> Total:
        return Total(self._buckets, self._out, self.needed, self.share)
