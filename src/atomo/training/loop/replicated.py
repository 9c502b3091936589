"""The loop without a master: every rank trains and takes every step.

Rank 0 also writes the folder of the run, as a master does: events, metrics, checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final, final

import torch
from torch import Tensor

from atomo.errors import TooFewWorkers
from atomo.exchange import GradientCounts
from atomo.exchange.states import InitialState, gather_states, receive_state, scatter_states
from atomo.training.checkpoints.checkpoint import Snapshot
from atomo.training.checkpoints.checkpoint_cadence import Cadence
from atomo.training.checkpoints.schema import exchange_in, without_exchange
from atomo.training.job.events import DONE, DRIFTED, INTERRUPTED, Caution, Event, StepDone
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round, RoundResult
from atomo.training.job.run_control import NO_CONTROL, RunControl
from atomo.training.loop.anchored_exchange import EndedRound
from atomo.training.loop.exchange_setup import cautions_of, make_elastic_group
from atomo.training.loop.replica import ReplicaStep, TrainingReplica, beginnings
from atomo.training.loop.replica_check import check_replicas
from atomo.training.records.progress import Progress, StepProgress
from atomo.training.records.run_recorder import Parts, RunRecorder
from atomo.training.records.worker_lines import WorkerLines
from atomo.transports import Transport

__all__ = ["Replicated"]

COMPARE_EVERY: Final = 50  # steps
NEVER: Final = -1
NONE: Final = GradientCounts(asked=0, used=0, late=0, lost=0, under_way=0)

Done = Callable[[StepDone], None]
Write = Callable[[Sequence[Mapping[str, Tensor]], bool], None]
"""Writes a checkpoint, if it can. The arguments are the states that differ between ranks, and True
for the last checkpoint of the run.
"""


@final
class Replicated:
    """Any rank of a run."""

    def __init__(
        self,
        job: Job,
        transport: Transport,
        device: torch.device,
        tell: Callable[[Event], None],
        interrupted: Callable[[], bool],
        control: RunControl = NO_CONTROL,
    ) -> None:
        self._job, self._transport, self._tell = job, transport, tell
        self._interrupted, self._timeout_s = interrupted, job.settings.timeout
        self._control, self._drifted = control, False
        self._group = make_elastic_group(job, transport)
        self._replica = TrainingReplica(job, transport, device, self._group)
        self._progress = Progress(job)
        self._lines = WorkerLines(job, transport.rank + 1)
        self._saved = self._compared = 0
        self._cadence = Cadence(job.settings.eval_freq, job.settings.checkpoint_every)
        self._recorder: RunRecorder | None = None  # of rank 0

    @property
    def outlives(self) -> bool:
        """True if the other ranks continue after the death of this rank."""
        return self._group is not None and self._transport.rank > 0

    @property
    def step(self) -> int:
        """The last finished step."""
        return self._replica.step

    def run(self) -> str:
        """Trains until the last step, an interrupt of any rank or a drift; returns the reason of
        the end.
        """
        if self._transport.rank == 0:
            return self._lead()
        initial = self._initial_state()
        if initial is None:
            self._leave()
            return DONE
        self._begin(initial.step, initial.state)
        return self._train(lambda done: None, lambda states, last: None)

    def _initial_state(self) -> InitialState | None:
        """Returns this rank's first state; None for a spare that was never needed."""
        if self._group and self._group.is_spare:
            return self._group.wait_for_slot()
        return receive_state(self._transport, self._timeout_s)

    def _lead(self) -> str:
        """Trains and writes the folder of the run."""
        recorder, replica = RunRecorder(self._job, self._tell, self._control.owner), self._replica
        self._recorder = recorder
        with recorder.owning():
            self._scatter_states(recorder.snapshot())

            def write(states: Sequence[Mapping[str, Tensor]], last: bool) -> None:
                optimizer = replica.optimizer_state() | exchange_in(states)
                workers = [*map(without_exchange, states)]
                model = replica.model_state(states)
                parts = Parts(model, optimizer, workers, has_buffers=replica.is_anchored)
                if last:
                    recorder.save_last(self.step, parts)
                else:
                    recorder.save(self.step, lambda: parts)
                self._tell_rank_times()

            with recorder.logging(self.step) as done:
                for caution in cautions_of(self._job, self._group):
                    self._tell(Caution(caution))
                reason = self._train(done, write)
            recorder.end(self.step, reason)
        return reason

    def _tell_rank_times(self) -> None:
        """Reports the times of the ranks, if a step was taken."""
        times = self._progress.rank_times(self.step)
        if times.rank:
            self._tell(times)

    def _scatter_states(self, snapshot: Snapshot | None) -> None:
        """Starts all ranks from a checkpoint, or from the beginning."""
        step = snapshot.step if snapshot else 0
        states = beginnings(snapshot, self._replica.exchange.hosts.of)
        self._begin(step, states[0])
        scatter_states(self._transport, states, step)

    def _begin(self, step: int, state: Mapping[str, Tensor]) -> None:
        self._replica.restore(step, state)
        if self._group:
            self._group.resume_after(self._replica.round.number - 1)
        # A state from another folder is not saved in this folder yet; a former spare does not know
        # the steps that are saved.
        was_spare = self._transport.rank >= self._job.workers
        self._saved = step if self._job.resume == "auto" and not was_spare else NEVER

    def _train(self, done: Done, write: Write) -> str:
        """Takes steps until the last one, or until a rank asks for an end; returns the reason.

        Raises:
            TooFewWorkers: on rank 0, if fewer workers remain than the run needs.
        """
        reason, few = DONE, None
        self._cadence.begin()
        try:
            reason = self._take_steps(done, write)
        except TooFewWorkers as error:
            few = error
        if self._saved != self.step:
            self._save(write, last=True)
        self._leave()
        if few is not None and self._recorder is not None:
            raise TooFewWorkers(f"{few}; {self._rescued()}") from few
        return reason

    def _take_steps(self, done: Done, write: Write) -> str:
        while self.step < self._job.last_step:
            outcome = self._take_step(done)
            if (reason := self._ending(outcome)) != DONE:
                return reason
            if self._cadence.due(self.step) or outcome.saving:
                self._save(write, last=self.step == self._job.last_step)
        return DONE

    def _ending(self, outcome: ReplicaStep) -> str:
        """Returns the reason of the end, or `DONE`. A drift ends the steps only if no rank is dead:
        a new plan needs measurements of all ranks.
        """
        is_whole = len(outcome.exchanged.reports) == self._job.workers
        return outcome.ending if is_whole or outcome.ending != DRIFTED else DONE

    def _leave(self) -> None:
        """Finishes the run after the last step."""
        if self._group and not self._group.is_spare:
            self._group.finish()
        (self._group.transport if self._group else self._transport).drain(self._timeout_s)
        self._replica.close()
        self._tell_notes()

    def _tell_notes(self) -> None:
        """Reports the group's notes about other ranks, on rank 0."""
        notes = self._group.take_notes() if self._group else []
        for note in notes if self._recorder else []:
            self._tell(Caution(note))

    def _rescued(self) -> str:
        """Describes the saved steps of a run that has too few ranks left."""
        if self.step:
            return (
                f"the checkpoint of step {self.step} has all steps that were taken, and the same "
                "command continues from it"
            )
        return "no step was taken yet"

    def _admit_spares(self) -> None:
        """Admits spares before a round, in the places of dead ranks."""
        round_ = self._replica.round
        if not self._group or self.step + 1 != round_.first:
            return
        if self._group.meets_before(round_.number):
            self._replica.settle()  # a spare has no part in a round that has ended
        joined = self._group.admit_spares(round_.number)
        if joined:
            if self._recorder:
                self._group.send_start(joined, self._replica.snapshot(), self.step)
            self._saved = self._compared = (
                NEVER  # as on ranks that join: all ranks must save and compare at the same steps
            )
            self._tell_notes()

    def _take_step(self, done: Done) -> ReplicaStep:
        """Takes a step."""
        self._admit_spares()
        transport, round_ = self._transport, self._replica.round
        before = transport.sent_bytes, transport.received_bytes
        # Wishes travel with an exchange: between two of them, no rank knows those of others.
        exchanges = self.step + 1 == round_.begins
        asks = self._wish() if exchanges else DONE
        saving = exchanges and self._asks_to_save()
        outcome = self._replica.take_step(ending=asks, saving=saving)
        if not any(report.images for report in outcome.exchanged.reports.values()):
            return outcome  # a slow rank has no batch of this step
        sent, received = transport.sent_bytes - before[0], transport.received_bytes - before[1]
        step = self._progress.done(self._figures(outcome, sent, received, round_.is_local))
        done(step)
        self._tell_notes()
        # All ranks must know the last step before they take it: a drift ends the steps one later.
        is_whole = self._group is None or self._group.is_complete
        self._drifted = is_whole and self._control.drifts(step) and self._can_save()
        self._lines.tell(self.step, outcome.report, outcome.metrics, outcome.step_s, sent)
        if self.step == round_.last and is_due(COMPARE_EVERY, round_):
            self._compare()
        return outcome

    def _wish(self) -> str:
        """Returns this rank's reason to end after the step; `DONE`: it has none."""
        return INTERRUPTED if self._interrupted() else DRIFTED if self._drifted else DONE

    def _figures(
        self, outcome: ReplicaStep, sent: int, received: int, is_local: bool
    ) -> StepProgress:
        """Returns the figures of a finished step."""
        group, job, rounds = self._group, self._job, outcome.rounds
        parts = outcome.exchanged, outcome.factor, outcome.update_s, outcome.step_s
        if is_local and not rounds:
            workers, none = len(group.members) if group else job.workers, (NONE, NONE)
            return StepProgress(self.step, *parts, sent, received, 0, *none, alone_of=workers)
        steps = sum(ended.round.steps for ended in rounds) or 1
        moved = sent, received, dense_bytes(job) * steps
        gradients, images = self._balances(outcome) if group else (None, None)
        result = result_of(rounds)
        return StepProgress(self.step, *parts, *moved, gradients, images, round_result=result)

    def _balances(self, outcome: ReplicaStep) -> tuple[GradientCounts, GradientCounts]:
        """Returns the counts of gradients and images, of a step or of the rounds that it ends."""
        assert self._group is not None
        balances = self._group.sample_split.balances
        if not outcome.rounds:
            return balances(self._job.rounds.at(self.step).number, outcome.exchanged.reports)
        counts = [
            balances(ended.round.number, exchanged.reports, ended.round.steps)
            for ended in outcome.rounds
            for exchanged in [ended.exchanged or outcome.exchanged]
        ]
        return reduce(GradientCounts.plus, [g for g, _ in counts]), reduce(
            GradientCounts.plus, [images for _, images in counts]
        )

    def _asks_to_save(self) -> bool:
        """Returns True if a checkpoint or another attempt is due, by the clock of rank 0."""
        return self._recorder is not None and (self._cadence.is_old or self._recorder.tries_again)

    def _can_save(self) -> bool:
        """Returns True if the checkpoint that the next plan starts from can probably be written."""
        return self._recorder is None or self._recorder.can_save(self.step)

    def _save(self, write: Write, *, last: bool) -> None:
        self._replica.settle()
        self._compare()
        write([*self._collect(self._replica.own_state(), "the state").values()], last)
        self._saved = self.step
        self._cadence.begin()

    def _compare(self) -> None:
        """Checks on rank 0 that all ranks have the same weights.

        Raises:
            ReplicasDiffer: the weights differ; the message names the ranks.
        """
        if self._compared == self.step:
            return
        self._compared = self.step
        states = self._collect({"digest": self._replica.digest()}, "the hash of the weights")
        check_replicas(states, self.step)

    def _collect(self, state: Mapping[str, Tensor], label: str) -> dict[int, dict[str, Tensor]]:
        """Gathers a state of every rank at rank 0, by rank; returns nothing elsewhere."""
        if self._group:
            return self._group.gather_states(state, self.step, label)
        return dict(
            enumerate(gather_states(self._transport, state, self.step, self._timeout_s, label))
        )


def result_of(rounds: Sequence[EndedRound]) -> RoundResult | None:
    """Returns the figures of the last of several rounds, with the steps of all."""
    if not rounds or rounds[-1].result is None:
        return None
    return replace(rounds[-1].result, steps=sum(ended.round.steps for ended in rounds))


def is_due(every: int, round_: Round) -> bool:
    """Returns True if a round has a step with a number that is a multiple of `every`."""
    return round_.last // every > (round_.first - 1) // every


def dense_bytes(job: Job) -> int:
    """Returns the bytes that a rank sends in an all-reduce of the gradient as float32."""
    return 2 * 4 * job.entries * (job.workers - 1) // job.workers
