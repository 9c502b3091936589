"""The steps of a master, and nothing of what else it does: no folder, no checkpoints, no lines."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from atomo.communicators import Coder, Limits, Report, Server, Source, make_down
from atomo.downlink import weights_dtype
from atomo.training.average import without_average
from atomo.training.damping import Damping
from atomo.training.job import Job
from atomo.training.master_weights import MasterWeights
from atomo.training.optimizer import FlatOptimizer
from atomo.transports import Transport

__all__ = ["Leader", "Led"]


@final
@dataclass(frozen=True)
class Led:
    """What a step came to."""

    reports: Mapping[int, Report]
    step_s: float
    decode_s: float
    update_s: float


@final
class Leader:
    """Rank 0, for some steps of a job whose workers all stay."""

    def __init__(self, job: Job, transport: Transport, device: torch.device) -> None:
        """All workers are made at the same time.

        Args:
            job: what is trained.
            transport: connects the ranks.
            device: where steps are taken.
        """
        s = job.settings
        self._job, self._step, self._damping = job, 0, Damping()
        self._weights = MasterWeights(job.model, job.buckets, device).flat
        self._optimizer = FlatOptimizer(self._weights, job.buckets, s, job.rate)
        source = Source(
            transport.local_size == transport.size,
            lambda: without_average(self._optimizer.state_dict()),
            job.down_buckets,
            Coder(s.compression, s.seed),
            weights_dtype(s.down),
        )
        down = make_down(s.down, source)
        self._server = Server(
            transport, job.buckets, s.num_aggregate, s.timeout, down, job.late_counts, job.workers,
            images=job.images_of_step, limits=Limits(s.step_timeout, s.grace),
        )  # fmt: skip
        self._server.meet(self._weights)

    def take_step(self) -> Led:
        """The next one."""
        server, started, before_s = self._server, time.perf_counter(), self._server.decode_s
        self._step += 1
        server.expect(self._job.buckets_at(self._step))
        server.broadcast(self._step, self._weights)
        reports = server.collect(self._optimizer.gradient)
        collected = time.perf_counter()
        factor = self._factor(reports)
        self._optimizer.step(self._step, factor)
        server.took(factor)
        ended = time.perf_counter()
        return Led(reports, ended - started, server.decode_s - before_s, ended - collected)

    def stop(self) -> None:
        """Ends the workers' part."""
        self._server.stop()

    def _factor(self, reports: Mapping[int, Report]) -> float:
        """What the noise of the codec leaves of the learning rate."""
        if not self._job.damps_at(self._step):
            return 1.0
        square = sum(report.square for report in reports.values()) / len(reports)
        return self._damping.factor(square, float(self._optimizer.gradient.norm()) ** 2)
