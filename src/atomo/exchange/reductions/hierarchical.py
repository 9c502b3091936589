"""Exchange that is dense inside a host and compressed between hosts.

For each bucket, one rank of each host sums the gradients of the ranks of its host: the gradient of
one worker. With a memory and a codec, by any reduction, these ranks exchange the sums between
hosts. Then each broadcasts the mean inside its host. `hosts.rails_of` assigns buckets to ranks. The
dense sums have a thread, and so have the broadcasts, beside the threads of the exchange, so that
one bucket may be in flight while another bucket is summed.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.exchange.base import Communicator, Exchanged
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.intra_host_group import IntraHostGroup
from atomo.exchange.engine.busy_intervals import BusyIntervals
from atomo.exchange.engine.pipeline import Pipeline, Settled
from atomo.exchange.engine.stages import one_thread
from atomo.exchange.report import Report
from atomo.exchange.reports import tell
from atomo.fusion import Bucket

__all__ = ["Hierarchical", "MeanSender"]


@final
@dataclass(frozen=True)
class MeanSender:
    """Sends the mean of a bucket to the other ranks of the host."""

    inside: IntraHostGroup

    def __call__(self, bucket: Bucket, mean: Float[Tensor, " n"]) -> None:
        """Broadcasts the mean, in the thread that has decoded it."""
        self.inside.broadcast(mean, label_of(bucket), self.inside.rank)


@final
class Hierarchical(Communicator):
    """A communicator over all ranks, by a communicator over one rank of each host."""

    def __init__(
        self,
        everyone: Collective,
        inside: IntraHostGroup,
        rails: Sequence[int],
        between: Pipeline | None,
    ) -> None:
        """Makes a communicator.

        Args:
            everyone: all ranks, which exchange their reports.
            inside: the ranks of this rank's host.
            rails: the rail of each bucket: the rank of each host that compresses it.
            between: the pipeline over the rail of this rank, with a `MeanSender`; None: this rank
                has no rail.
        """
        self._everyone, self._inside, self._rails = everyone, inside, rails
        self._between = between
        self._summer = ThreadPoolExecutor(1, "sum inside", one_thread)
        self._taker = ThreadPoolExecutor(1, "take inside", one_thread)

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        self._step, self._buckets = step, buckets
        rails, rank = self._rails, self._inside.rank
        self._pushed: dict[int, Float[Tensor, " n"]] = {}
        self._summing: list[Future[None]] = []
        self._busy = BusyIntervals()
        self._before_s = self._inside.wait_s
        if self._between:
            own = [bucket for bucket in buckets if rails[bucket.number] == rank]
            self._between.begin(step, own, out)
        self._taking = [
            self._taker.submit(self._take, bucket, out)
            for bucket in buckets
            if rails[bucket.number] != rank
        ]

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pushed[bucket.number] = flat
        for bucket_next in self._buckets[len(self._summing) :]:  # which may be those of a fragment
            flat_next = self._pushed.get(bucket_next.number)
            if flat_next is None:
                return
            self._summing.append(self._summer.submit(self._sum, bucket_next, flat_next))

    def average(self, report: Report) -> Exchanged:
        call_time = time.perf_counter()
        for summing in self._summing:
            summing.result()
        settled = (
            self._between.settle() if self._between else Settled(0.0, 0.0, 0.0, BusyIntervals())
        )
        for taking in self._taking:
            taking.result()
        wait_s = settled.wait_s + self._inside.wait_s - self._before_s
        full = replace(report, encode_s=settled.encode_s, wait_s=wait_s)
        reports = tell(self._everyone, self._step, full)
        busy = settled.busy | self._busy
        return Exchanged(reports, settled.decode_s, busy.covered_s(), busy.covered_s(call_time))

    def _sum(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        rail = self._rails[bucket.number]
        with self._busy.busy():
            self._inside.reduce(flat, label_of(bucket), rail)
        if rail != self._inside.rank:
            return
        assert self._between is not None  # this rank has a rail
        self._between.push(bucket, flat)

    def _take(self, bucket: Bucket, out: Float[Tensor, " n"]) -> None:
        mean = out[bucket.offset : bucket.offset + bucket.size]
        self._inside.broadcast(mean, label_of(bucket), self._rails[bucket.number])


def label_of(bucket: Bucket) -> str:
    """Names a bucket in errors. Steps do not overlap: each ends with an exchange of reports."""
    return f"bucket {bucket.number}"
