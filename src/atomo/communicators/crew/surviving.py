"""A communicator whose steps outlive those who share them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.communicators.base import Communicator, Exchanged
from atomo.communicators.crew.circle import Interrupted
from atomo.communicators.crew.crew import Crew
from atomo.communicators.crew.standing import Reports
from atomo.communicators.direct import Direct
from atomo.communicators.pipeline import Pipeline
from atomo.communicators.report import Report
from atomo.communicators.telling import report_frame, reports_in
from atomo.errors import TransportError
from atomo.fusion import Bucket

__all__ = ["Surviving"]


@final
class Surviving(Communicator):
    """A pipeline that goes on without those who die.

    What a rank has encoded is what it sends, however often: so its memory is not touched by a step
    that is interrupted. In the mean of the open step the part of the dead is missing.
    """

    def __init__(self, crew: Crew, collective: Direct, pipeline: Pipeline) -> None:
        """A communicator.

        Args:
            crew: who takes part.
            collective: of those who do.
            pipeline: over it, by a reduction that repeats.
        """
        self._crew, self._collective, self._pipeline = crew, collective, pipeline

    def begin(self, step: int, buckets: Sequence[Bucket], out: Float[Tensor, " n"]) -> None:
        self._crew.check()
        self._step, self._settled = step, False
        self._weigh()
        self._pipeline.begin(step, buckets, out)

    def push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._pipeline.push(bucket, flat)

    def average(self, report: Report) -> Exchanged:
        asked, attempt = time.perf_counter(), self._pipeline.settle
        while True:
            try:
                settled = attempt()
                self._settled = True
                told = replace(report, encode_s=settled.encode_s, wait_s=settled.wait_s)
                reports = self._tell(told)
                break
            except Interrupted:
                if (found := self._decided()) is not None:
                    reports = found
                    break
                attempt = self._pipeline.repeat
        self._crew.commit(self._step, reports)
        busy = settled.busy
        return Exchanged(reports, settled.decode_s, busy.covered_s(), busy.covered_s(asked))

    def _decided(self) -> Reports | None:
        """The reports of the open step, where it counts for all; None: it goes on with the others.

        Raises:
            TooFewWorkers: it does not; the memory has what was sent.
        """
        self._pipeline.come_to_rest()
        verdict = self._crew.recover()
        if verdict.step == self._step:
            if not self._settled:
                raise TransportError(f"step {self._step} counts, and its mean is not here")
            return verdict.reports
        self._settled = False
        try:
            self._crew.check()
        except BaseException:
            self._pipeline.take_back()
            raise
        self._weigh()
        return None

    def _weigh(self) -> None:
        crew = self._crew
        self._collective.shares = crew.division.shares(self._step, crew.members)

    def _tell(self, report: Report) -> Reports:
        """The reports of all: whoever has them knows that all have the mean."""
        frame, what = report_frame(self._step, self._crew.rank, report), "the report"
        frames = self._collective.gather(frame, f"{what} of step {self._step}")
        return dict(reports_in(frames, self._step, self._crew.members))
