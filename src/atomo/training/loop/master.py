"""The master: owns weights and optimizer, takes the steps, writes the checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import torch
from torch import Tensor

from atomo.errors import TooFewWorkers
from atomo.exchange import Exchanged
from atomo.training.checkpoints.checkpoint import Snapshot
from atomo.training.checkpoints.checkpoint_cadence import Cadence
from atomo.training.checkpoints.resume import counts_in, hosts_in, spread
from atomo.training.checkpoints.schema import (
    AHEAD,
    COUNTS,
    EXCHANGE,
    OUTER,
    load_model,
    without_exchange,
    without_round,
)
from atomo.training.job.events import DONE, DRIFTED, INTERRUPTED, Caution, Event, StepDone
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round
from atomo.training.job.run_control import NO_CONTROL, RunControl
from atomo.training.loop.local_steps import steps_taken
from atomo.training.loop.master_stepper import MasterStepper
from atomo.training.loop.master_weights import on_host
from atomo.training.optim.noise_damping import without_damping
from atomo.training.optim.round_optimizer import MOMENTUM
from atomo.training.records.progress import Progress, StepProgress
from atomo.training.records.run_recorder import Parts, RunRecorder
from atomo.transports import Transport

__all__ = ["Master"]

CPU: Final = torch.device("cpu")


@final
class Master:
    """Rank 0 of a run.

    Batch-norm statistics: each worker has its own, over its own samples, and a resume restores
    them. The model in a checkpoint has their mean; in rounds of local steps, that of the last
    round, from which all workers begin the next.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport,
        tell: Callable[[Event], None],
        interrupted: Callable[[], bool],
        control: RunControl = NO_CONTROL,
        device: torch.device = CPU,
    ) -> None:
        """Creates a master.

        Args:
            job: the training run; its model stays on the CPU.
            transport: connects the master with the workers.
            tell: receives the events.
            interrupted: returns True if the master should write a checkpoint and end the run.
            control: detects that steps drift from the plan.
            device: of the sums of gradients and of the optimizer.
        """
        self.step = 0  # the last finished step, for error messages
        self._job, self._transport, self._tell = job, transport, tell
        self._interrupted, self._control = interrupted, control
        self._recorder, self._progress = RunRecorder(job, tell, control.owner), Progress(job)
        self._stepper = MasterStepper(job, transport, device)
        self._server, self._weights = self._stepper.server, self._stepper.weights
        self._rounds = self._stepper.rounds
        self._saved = -1
        self._resumes = False  # True if workers continue in the middle of the next round
        self._cadence = Cadence(job.settings.eval_freq, job.settings.checkpoint_every)

    def run(self) -> str:
        """Trains until the last step, an interrupt or a drift; returns the reason of the end."""
        with self._recorder.owning():
            return self._run()

    def _run(self) -> str:
        self.step = self._resume()
        with self._recorder.logging(self.step) as done:
            self._warn()
            if not self.step:
                self._server.check_initial_weights(self._weights.flat)
            try:
                reason = self._train(done)
            except TooFewWorkers as error:
                raise TooFewWorkers(f"{error}; {self._rescued()}") from error
            if self._saved != self.step:
                self._recorder.save_last(self.step, self._parts())
                self._tell_notes()
        self._server.stop()
        self._tell_notes()
        balances = self._server.gradient_counts(), self._server.image_counts()
        self._tell_rank_times()
        self._recorder.end(self.step, reason, *balances)
        return reason

    def _train(self, done: Callable[[StepDone], None]) -> str:
        """Takes steps until the last, an interrupt or a drift; returns the reason of the end."""
        self._cadence.begin()
        while self.step < self._job.last_step:
            step = self._take_step(self._rounds.at(self.step + 1))
            done(step)
            self._tell_notes()
            if self._interrupted():
                return INTERRUPTED
            # A new plan needs measurements of all ranks together, and continues from a checkpoint.
            if self._are_all_there() and self._control.drifts(step) and self._save():
                return DRIFTED
            first = max(self._rounds.at(self.step).first, self._saved + 1)
            is_due = self._cadence.due(self.step, first)
            if is_due or self._is_old() or self._recorder.tries_again:
                self._save()
        return DONE

    def _is_old(self) -> bool:
        """Returns True if the last checkpoint is too old.

        A checkpoint needs every worker idle. While a worker may hang, the next checkpoint is
        delayed by up to the timeout: the steps continue without that worker.
        """
        patience_s = self._job.settings.timeout if self._server.has_busy_workers else 0.0
        return self._cadence.is_older(patience_s)

    def _are_all_there(self) -> bool:
        return len(self._server.workers) == self._job.workers

    def _tell_notes(self) -> None:
        """Reports the server's notes about workers."""
        for note in self._server.take_notes():
            self._tell(Caution(note))

    def _tell_rank_times(self) -> None:
        """Reports the times of the ranks, if a step was taken."""
        times = self._progress.rank_times(self.step)
        if times.rank:
            self._tell(times)

    def _warn(self) -> None:
        """Cautions if the death of a worker ends the run."""
        minimum, workers = self._job.settings.least_workers, self._job.workers
        spares = self._job.settings.spares
        if (minimum < workers or spares) and not self._transport.fault_tolerant:
            option = f"--spares {spares}" if spares else f"--min-workers {minimum} of {workers}"
            self._tell(
                Caution(
                    f"{option}: the death of any process ends this run, as no failure detector "
                    "runs here; `atomo train` and `mpirun --with-ft ulfm` of Open MPI 5 detect "
                    "failures"
                )
            )

    def _rescued(self) -> str:
        """Saves the steps that were taken, if it can, and stops the remaining workers.

        Returns:
            The outcome, in words.
        """
        has_workers = bool(self._server.workers)
        if has_workers and self.step and self.step > self._saved:
            self._save()
        self._server.stop()
        self._tell_notes()
        if self._saved > self.step:
            return (
                f"the checkpoint of step {self._saved}, in the middle of a round, is the last one, "
                "and the same command continues from it"
            )
        if self._saved == self.step:
            return (
                f"the checkpoint of step {self._saved} has all steps that were taken, and the same "
                "command continues from it"
            )
        if not self.step:
            return "no step was taken yet"
        why = "it cannot be written" if has_workers else "no worker is left to save its state"
        return f"{why}, and the last checkpoint is unchanged"

    def _resume(self) -> int:
        snapshot = self._recorder.snapshot()
        if snapshot is None:
            return 0
        load_model(self._job.model, snapshot.model)
        self._weights.from_model()
        self._stepper.damping.load_state_dict(snapshot.optimizer)
        self._stepper.optimizer.load_state_dict(
            without_exchange(without_damping(snapshot.optimizer))
        )
        states: list[dict[str, Tensor]] = []
        if snapshot.workers:
            states = spread(snapshot.workers, range(self._job.workers), hosts_in(snapshot))
        if self._stepper.paced:
            own = {n.removeprefix(EXCHANGE): t for n, t in snapshot.optimizer.items()}
            self._stepper.paced.load_state_dict(own)
        self._resumes = self._continues_round(snapshot, states)
        step = snapshot.step if self._resumes else self._round_start(snapshot.step)
        self._stepper.continue_after(step)
        keeps = self._resumes or self._are_ahead(step, states)
        if states:
            self._server.restore(states if keeps else [*map(without_round, states)])
        if self._job.resume == "auto":
            self._saved = step
            self._server.restore_counts(counts_in(snapshot))
        return step

    def _continues_round(self, snapshot: Snapshot, states: Sequence[Mapping[str, Tensor]]) -> bool:
        """Returns True if workers continue in the middle of a round, at their own weights."""
        next_ = snapshot.step + 1
        round_, names = self._rounds.at(next_), snapshot.optimizer
        streams = any(n.startswith(OUTER) and not n.startswith(MOMENTUM) for n in names)
        is_open = round_.is_local and snapshot.step < self._job.last_step and not streams
        return is_open and 0 < steps_taken(states) == next_ - round_.first

    def _are_ahead(self, step: int, states: Sequence[Mapping[str, Tensor]]) -> bool:
        """Returns True if workers continue after a round with a part of their own weights."""
        follows = step > 0 and self._rounds.at(step + 1).is_local
        return follows and all(AHEAD in state for state in states)

    def _round_start(self, step: int) -> int:
        """Returns the step from which workers continue a checkpoint that lacks their own weights: a
        round that it interrupts begins anew at the anchor.
        """
        first = self._rounds.at(step + 1).first
        return step if step >= self._job.last_step else min(step, first - 1)

    def _take_step(self, round_: Round) -> StepDone:
        transport, server = self._transport, self._server
        before = transport.received_bytes, transport.sent_bytes
        result = self._stepper.take_step(
            round_.number, lambda states: self._save_in_round(round_, states), resumes=self._resumes
        )
        self._resumes = False
        self.step, reports = round_.last, result.reports
        exchanged = Exchanged(reports, result.decode_s, exchange_s=0.0, hidden_s=0.0)
        times = result.update_s, result.step_s
        up, down = transport.received_bytes - before[0], transport.sent_bytes - before[1]
        dense = 4 * self._job.entries * len(reports) * round_.steps
        balances = server.gradient_counts(), server.image_counts()
        lags = server.slowest()
        done = StepProgress(
            self.step, exchanged, result.factor, *times, up, down, dense, *balances, *lags,
            steps=round_.steps, round_result=self._stepper.result(round_, result.steps_of),
        )  # fmt: skip
        return self._progress.done(done)

    def _save(self) -> bool:
        """Writes a checkpoint unless this step has one; returns True if the step has one now."""
        if self._saved != self.step and self._recorder.save(self.step, self._parts):
            self._saved = self.step
            self._tell_rank_times()
        self._cadence.begin()  # also after a failure: the recorder schedules the next attempt
        self._tell_notes()
        return self._saved == self.step

    def _save_in_round(self, round_: Round, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Writes a checkpoint in the middle of a round, if possible, with the states of workers."""
        taken = steps_taken(states)
        step = round_.first - 1 + taken
        counts = self._server.counts_before
        if not taken or not self._recorder.save(step, lambda: self._joined(states, counts)):
            return
        self._saved = step
        self._cadence.begin()

    def _parts(self) -> Parts:
        return self._joined(self._server.save(), self._server.counts)

    def _joined(
        self, states: Sequence[Mapping[str, Tensor]], counts: Sequence[Sequence[int]]
    ) -> Parts:
        """Joins the state of the master with those of the workers."""
        optimizer = (
            on_host(self._stepper.optimizer.state_dict()) | self._stepper.damping.state_dict()
        )
        if self._stepper.paced:
            pace = self._stepper.paced.state_dict()
            optimizer |= {EXCHANGE + name: tensor for name, tensor in pace.items()}
        if any(map(any, counts)):
            optimizer[EXCHANGE + COUNTS] = torch.tensor(counts)
        self._weights.to_model()
        averaged = self._stepper.has_anchor and bool(self._job.buffer_buckets)
        return Parts(self._job.model.state_dict(), optimizer, states, has_buffers=averaged)
