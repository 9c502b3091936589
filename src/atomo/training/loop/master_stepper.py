"""Steps of a master: its weights, its optimizer and the server that averages gradients.

`master.py` adds the folder, the checkpoints and the log lines of a run. Trials of plans use only
the steps (`plan_trials.py`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from atomo.exchange import (
    DifferenceCoder,
    Pace,
    Report,
    Server,
    StepLimits,
    SyncInputs,
    make_weight_sync,
)
from atomo.options.outer import parse_outer
from atomo.options.weight_sync import weights_dtype
from atomo.training.checkpoints.schema import INNER, kept_buffers
from atomo.training.job.batch_deal import seconds_of
from atomo.training.job.job import Job, floating_buffers
from atomo.training.job.round_plan import Round, RoundResult, RoundSource, correlation
from atomo.training.loop.master_weights import MasterWeights, on_host
from atomo.training.loop.paced_rounds import PacedRounds, paces
from atomo.training.loop.worker_state import buffers_in
from atomo.training.optim.noise_damping import Damping
from atomo.training.optim.round_optimizer import RoundOptimizer, make_optimizer
from atomo.training.optim.weight_average import without_average
from atomo.transports import Transport

__all__ = ["MasterStepper", "StepResult"]

Saving = Callable[[Sequence[Mapping[str, torch.Tensor]]], None]


@final
@dataclass(frozen=True)
class StepResult:
    """Reports and times of a step."""

    reports: Mapping[int, Report]
    factor: float  # on the learning rate, by the noise of the codec
    step_s: float
    decode_s: float
    update_s: float
    steps_of: tuple[int, ...] = ()  # local steps of each worker, where speeds determine them


@final
class MasterStepper:
    """Rank 0's weights, optimizer and server, and its steps."""

    def __init__(
        self, job: Job, transport: Transport, device: torch.device, *, trial: bool = False
    ) -> None:
        """Starts at the model's weights. All workers start at the same time.

        Args:
            job: the training run; its model stays on the CPU.
            transport: connects rank 0 with the workers.
            device: of the sums of gradients and of the optimizer.
            trial: True for a trial, which ends if a worker dies.
        """
        s = job.settings
        self._job, self._transport = job, transport
        self.paced = PacedRounds(job, rank=0) if paces(s) else None
        self.rounds: RoundSource = self.paced or job.rounds
        buffers = [*floating_buffers(job.model).values()] if job.buffer_buckets else []
        self.weights = MasterWeights(job.model, job.buckets, device, buffers)
        self.optimizer = make_optimizer(self.weights.flat, job, self.rounds)
        self._sharing: list[int] = []  # ranks without the master, of the present round
        self.damping = Damping()
        self._previous: torch.Tensor | None = None  # the mean differences of the last rounds
        self.server = Server(
            transport,
            job.buckets,
            s.num_aggregate,
            job.timeout_s,
            make_weight_sync(s.down, self._source()),
            late_counts=job.late_counts,
            min_workers=job.workers if trial else s.least_workers,
            spares=0 if trial else s.spares,
            images=job.images_of_step,
            spare_state=buffers_in if kept_buffers(job.model) and not trial else None,
            max_strikes=s.max_strikes,
            limits=StepLimits(s.step_timeout, s.grace),
        )

    def _source(self) -> SyncInputs:
        """Returns the sources of the weights and of the differences that workers receive."""
        return SyncInputs(
            self._transport.local_size == self._transport.size,
            lambda: without_average(self.optimizer.state_dict()),
            self._job.down_buckets,
            DifferenceCoder(self._job.settings.compression, self._job.settings.seed),
            weights_dtype(self._job.settings.down),
        )

    def take_step(
        self, step: int, on_states: Saving = lambda states: None, *, resumes: bool = False
    ) -> StepResult:
        """Takes a step, or a round of local steps with this number.

        The order of the server's calls is the protocol: buckets, weights, gradients, and then the
        factor of the step, for workers that repeat the step.

        Args:
            step: the number.
            on_states: receives the states that workers send in the middle of a round.
            resumes: True if workers continue in the middle of the round.
        """
        server, started, before_s = self.server, time.perf_counter(), self.server.decode_s
        round_ = self.rounds.numbered(step)
        if not resumes:
            self._hand_over_moments(round_)
        if self.paced and round_.is_local:
            self.paced.begin(round_.first)
        deal = self._deal if self.paced and round_.is_local else None
        server.expect(self._job.served_buckets(round_), round_.steps, deal)
        server.broadcast(step, self.weights.flat)
        reports = server.collect(self.optimizer.gradient, on_states)
        collected = time.perf_counter()
        factor = self._factor(round_.last, reports)
        self.optimizer.step(step, factor)
        server.commit(factor)
        ended = time.perf_counter()
        decode_s = server.decode_s - before_s
        steps_of = self._advance(reports) if deal else ()
        return StepResult(reports, factor, ended - started, decode_s, ended - collected, steps_of)

    def _deal(self, workers: Sequence[int]) -> tuple[Pace, Sequence[int]]:
        """Divides the batches of the present round by the speeds of workers."""
        assert self.paced is not None, "rounds have a given time"
        self._sharing = [worker - 1 for worker in workers]
        first, last = self.paced.present
        seconds = seconds_of(self._sharing, self.paced.seconds)
        images = self.paced.images_of(self._sharing, self._job.images_of_step)
        return Pace(first, last, tuple(seconds)), images

    def _advance(self, reports: Mapping[int, Report]) -> tuple[int, ...]:
        """Determines the next round by the seconds of this one; returns the local steps of each
        worker that counted.
        """
        paced, counted = self.paced, [worker - 1 for worker in reports]
        assert paced is not None, "rounds have a given time"
        steps = paced.steps_of(self._sharing, counted)
        own = {
            rank: reports[1 + rank].compute_s / max(1, taken)
            for rank, taken in zip(sorted(counted), steps, strict=True)
        }
        known = {**paced.seconds, **own}  # one that was late keeps its speed
        paced.advance({rank: known[rank] for rank in self._sharing if rank in known})
        return steps

    @property
    def has_anchor(self) -> bool:
        """True from the first round of local steps on."""
        return isinstance(self.optimizer, RoundOptimizer) and self.optimizer.has_anchor

    def continue_after(self, step: int) -> None:
        """Continues after a step with weights and an optimizer that are those of a checkpoint."""
        if isinstance(self.optimizer, RoundOptimizer):
            self.optimizer.has_anchor = step > 0 and self.rounds.at(step).is_local

    def _hand_over_moments(self, round_: Round) -> None:
        """Sends all workers the state of the optimizer before the first round of local steps, which
        their own optimizers continue from.
        """
        first = round_.number > 1 and round_.is_local
        if first and not self.rounds.numbered(round_.number - 1).is_local:
            state = on_host(without_average(self.optimizer.state_dict()))
            self.server.hand_over({INNER + name: tensor for name, tensor in state.items()})

    def result(self, round_: Round, steps_of: tuple[int, ...]) -> RoundResult | None:
        """Returns the figures of a round of local steps that has just finished; None for a step.

        Args:
            round_: the round.
            steps_of: local steps of each worker, where speeds determine them.
        """
        if not round_.is_local:
            return None
        spans = [
            slice(bucket.offset, bucket.offset + bucket.size)
            for bucket in self._job.served_buckets(round_)
            if bucket.offset < self._job.entries
        ]
        mean, before = self.optimizer.gradient, self._previous
        if before is None:
            before = self._previous = torch.zeros_like(mean)
        similar = correlation([(mean[span], before[span]) for span in spans])
        for span in spans:
            before[span] = mean[span]
        outer = parse_outer(self._job.settings.outer).at_rate(self._job.rate.at(round_.last))
        rate = outer.effective_rate(similar or 0.0)
        return RoundResult(round_.number, round_.steps, similar, rate, steps_of)

    def _factor(self, step: int, reports: Mapping[int, Report]) -> float:
        """Returns the factor on the learning rate, by the noise of the codec."""
        if not self._job.damps_at(step):
            return 1.0
        square = sum(report.square for report in reports.values()) / len(reports)
        return self.damping.factor(square, float(self.optimizer.gradient.norm()) ** 2)
