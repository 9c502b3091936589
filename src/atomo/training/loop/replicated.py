"""The loop without a master: every rank trains, and takes every step itself.

Rank 0 also keeps the folder of the run, as a master does: events, metrics, checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import torch
from torch import Tensor

from atomo.errors import TooFewWorkers
from atomo.exchange.states import InitialState, gather_states, receive_state, scatter_states
from atomo.training.checkpoints.checkpoint import Snapshot
from atomo.training.checkpoints.checkpoint_cadence import Cadence
from atomo.training.checkpoints.schema import exchange_in, without_exchange
from atomo.training.job.events import DONE, DRIFTED, INTERRUPTED, Caution, Event, StepDone
from atomo.training.job.job import Job
from atomo.training.job.run_control import NO_CONTROL, RunControl
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

Done = Callable[[StepDone], None]
Write = Callable[[Sequence[Mapping[str, Tensor]], bool], None]
"""Writes a checkpoint, if it can, with what each rank has that others have not; the last one of
the run, or another.
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
        """True if the other ranks go on when this rank dies."""
        return self._group is not None and self._transport.rank > 0

    @property
    def step(self) -> int:
        """The last one that was taken, for who reports an error."""
        return self._replica.step

    def run(self) -> str:
        """Trains to the end, until a rank is interrupted, or until steps have drifted; says
        which.
        """
        if self._transport.rank == 0:
            return self._lead()
        dealt = self._dealt()
        if dealt is None:
            self._leave()
            return DONE
        self._begin(dealt.step, dealt.state)
        return self._train(lambda done: None, lambda states, last: None)

    def _dealt(self) -> InitialState | None:
        """Returns the state that this rank begins with; None for a spare that was never needed."""
        if self._group and self._group.is_spare:
            return self._group.wait_for_slot()
        return receive_state(self._transport, self._timeout_s)

    def _lead(self) -> str:
        """Trains, and keeps the folder."""
        recorder, replica = RunRecorder(self._job, self._tell, self._control.owner), self._replica
        self._recorder = recorder
        with recorder.owning():
            self._deal(recorder.snapshot())

            def write(states: Sequence[Mapping[str, Tensor]], last: bool) -> None:
                optimizer = replica.optimizer_state() | exchange_in(states)
                workers = [*map(without_exchange, states)]
                parts = Parts(replica.model_state(), optimizer, workers)
                if last:
                    recorder.save_last(self.step, parts)
                else:
                    recorder.save(self.step, lambda: parts)

            with recorder.logging(self.step) as done:
                for caution in cautions_of(self._job, self._group):
                    self._tell(Caution(caution))
                reason = self._train(done, write)
            recorder.end(self.step, reason)
        return reason

    def _deal(self, snapshot: Snapshot | None) -> None:
        """Has all ranks begin where a checkpoint ends, or anew."""
        step = snapshot.step if snapshot else 0
        states = beginnings(snapshot, self._replica.exchange.hosts.of)
        self._begin(step, states[0])
        scatter_states(self._transport, states, step)

    def _begin(self, step: int, state: Mapping[str, Tensor]) -> None:
        self._replica.restore(step, state)
        if self._group:
            self._group.resume_after(step)
        # What was continued from another folder is not in this one yet, and who has waited cannot
        # say what was.
        waited = self._transport.rank >= self._job.workers
        self._saved = step if self._job.resume == "auto" and not waited else NEVER

    def _train(self, done: Done, write: Write) -> str:
        """Takes steps until there are none left, or a rank asks for an end; says which.

        Raises:
            TooFewWorkers: at rank 0, where fewer are left than must be.
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
            taken = self._take_step(done)
            if (reason := self._ending(taken)) != DONE:
                return reason
            if self._cadence.due(self.step) or taken.saving:
                self._save(write, last=self.step == self._job.last_step)
        return DONE

    def _ending(self, taken: ReplicaStep) -> str:
        """Returns why there is no further step. Only all ranks together can measure anew."""
        is_whole = len(taken.exchanged.reports) == self._job.workers
        return taken.ending if is_whole or taken.ending != DRIFTED else DONE

    def _leave(self) -> None:
        """Finishes the run after the last step."""
        if self._group and not self._group.is_spare:
            self._group.finish()
        (self._group.transport if self._group else self._transport).drain(self._timeout_s)
        self._replica.close()
        self._tell_notes()

    def _tell_notes(self) -> None:
        """Says at rank 0 what became of the others."""
        notes = self._group.take_notes() if self._group else []
        for note in notes if self._recorder else []:
            self._tell(Caution(note))

    def _rescued(self) -> str:
        """Says what is kept of a run that has too few ranks left."""
        if self.step:
            return (
                f"the checkpoint of step {self.step} has all steps that were taken, and the same "
                "command continues from it"
            )
        return "no step was taken yet"

    def _meet(self) -> None:
        """Admits spares before a step, in the places of the dead."""
        joined = self._group.admit_spares(self.step + 1) if self._group else ()
        if self._group and joined:
            if self._recorder:
                self._group.send_start(joined, self._replica.snapshot(), self.step)
            self._saved = self._compared = NEVER  # as for those who join, so that all do the same
            self._tell_notes()

    def _take_step(self, done: Done) -> ReplicaStep:
        """Takes a step."""
        self._meet()
        transport = self._transport
        before = transport.sent_bytes, transport.received_bytes
        asks = INTERRUPTED if self._interrupted() else DRIFTED if self._drifted else DONE
        taken = self._replica.take_step(ending=asks, saving=self._asks_to_save())
        sent, received = transport.sent_bytes - before[0], transport.received_bytes - before[1]
        parts = taken.exchanged, taken.factor, taken.update_s, taken.step_s
        group, reports = self._group, taken.exchanged.reports
        books = group.sample_split.balances(self.step, reports) if group else ()
        dense = dense_bytes(self._job)
        step = self._progress.done(StepProgress(self.step, *parts, sent, received, dense, *books))
        done(step)
        self._tell_notes()
        # All ranks must know before a step that it is the last one: so it is the one after this.
        is_whole = group is None or group.is_complete
        self._drifted = is_whole and self._control.drifts(step) and self._can_save()
        self._lines.tell(self.step, taken.report, taken.metrics, taken.step_s, sent)
        if self.step % COMPARE_EVERY == 0:
            self._compare()
        return taken

    def _asks_to_save(self) -> bool:
        """Returns True if a checkpoint is due, by one clock for all, or another attempt."""
        return self._recorder is not None and (self._cadence.is_old or self._recorder.tries_again)

    def _can_save(self) -> bool:
        """Returns True if the checkpoint that the next plan starts from can probably be written."""
        return self._recorder is None or self._recorder.can_save(self.step)

    def _save(self, write: Write, *, last: bool) -> None:
        self._compare()
        write([*self._collect(self._replica.own_state(), "the state").values()], last)
        self._saved = self.step
        self._cadence.begin()

    def _compare(self) -> None:
        """Has rank 0 see that all ranks have the same weights.

        Raises:
            ReplicasDiffer: they have not; the message names who differs.
        """
        if self._compared == self.step:
            return
        self._compared = self.step
        found = self._collect({"digest": self._replica.digest()}, "the hash of the weights")
        check_replicas(found, self.step)

    def _collect(self, state: Mapping[str, Tensor], what: str) -> dict[int, dict[str, Tensor]]:
        """Gathers a state of every rank at rank 0, by rank; returns nothing elsewhere."""
        if self._group:
            return self._group.gather_states(state, self.step, what)
        return dict(
            enumerate(gather_states(self._transport, state, self.step, self._timeout_s, what))
        )


def dense_bytes(job: Job) -> int:
    """Returns the bytes that a rank sends in an all-reduce of the gradient as float32."""
    return 2 * 4 * job.entries * (job.workers - 1) // job.workers
