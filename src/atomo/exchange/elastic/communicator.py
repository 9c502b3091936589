"""A communicator that completes its step after the death of a member."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import TransportError
from atomo.exchange.base import Communicator, Exchanged
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.elastic.epoch_transport import StepInterrupted
from atomo.exchange.elastic.group import ElasticGroup
from atomo.exchange.elastic.progress import Reports
from atomo.exchange.engine.pipeline import Pipeline
from atomo.exchange.report import Report
from atomo.exchange.reports import report_frame, reports_in
from atomo.fusion import Bucket

__all__ = ["ElasticCommunicator"]


@final
class ElasticCommunicator(Communicator):
    """A pipeline that continues without dead members.

    A rank encodes its gradient once and sends the same frames in every attempt, so an interrupted
    step does not change its memory. The mean of the open step lacks the gradients of the dead.
    """

    def __init__(self, group: ElasticGroup, collective: Direct, pipeline: Pipeline) -> None:
        """Creates a communicator.

        Args:
            group: the members.
            collective: of the members.
            pipeline: over this collective, with a reduction that can repeat.
        """
        self._group, self._collective, self._pipeline = group, collective, pipeline

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        self._group.check()
        self._step, self._settled = step, False
        self._set_shares()
        self._pipeline.begin(step, buckets, out)

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pipeline.push(bucket, flat)

    def average(self, report: Report) -> Exchanged:
        call_time, attempt = time.perf_counter(), self._pipeline.settle
        while True:
            try:
                settled = attempt()
                self._settled = True
                timed = replace(report, encode_s=settled.encode_s, wait_s=settled.wait_s)
                reports = self._gather_reports(timed)
                break
            except StepInterrupted:
                if (recovered := self._recovered()) is not None:
                    reports = recovered
                    break
                attempt = self._pipeline.repeat
        self._group.commit(self._step, reports)
        busy = settled.busy
        return Exchanged(reports, settled.decode_s, busy.covered_s(), busy.covered_s(call_time))

    def _recovered(self) -> Reports | None:
        """Returns the reports of the open step if all members commit it; None if the step continues
        with the living members.

        Raises:
            TooFewWorkers: the step does not count; the memory takes back the gradient that was
                sent.
        """
        self._pipeline.come_to_rest()
        verdict = self._group.recover()
        if verdict.step == self._step:
            if not self._settled:
                raise TransportError(
                    f"step {self._step} is committed, and this rank lacks its mean"
                )
            return verdict.reports
        self._settled = False
        try:
            self._group.check()
        except BaseException:
            self._pipeline.take_back()
            raise
        self._set_shares()
        return None

    def _set_shares(self) -> None:
        group = self._group
        self._collective.shares = group.sample_split.shares(self._step, group.members)

    def _gather_reports(self, report: Report) -> Reports:
        """Gathers the reports. A rank that has all of them knows that every member has the mean."""
        frame, label = report_frame(self._step, self._group.rank, report), "the report"
        frames = self._collective.gather(frame, f"{label} of step {self._step}")
        return dict(reports_in(frames, self._step, self._group.members))
