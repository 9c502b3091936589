"""The loop without a master: every rank trains, and takes every step itself.

Rank 0 also keeps the folder of the run, as a master does: events, metrics, checkpoints.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import torch
from torch import Tensor

from atomo.communicators.rooted import collect, deal, take
from atomo.errors import ReplicasDiffer
from atomo.training.average import without_average
from atomo.training.cadence import Cadence
from atomo.training.checkpoint import Snapshot
from atomo.training.contents import EXCHANGE, without_exchange
from atomo.training.events import DONE, DRIFTED, INTERRUPTED, Event, StepDone
from atomo.training.job import Job
from atomo.training.keeper import Keeper, Parts
from atomo.training.progress import Progress, Step
from atomo.training.replica import Replica, Taken, joined
from atomo.training.resume import hosts_in, spread
from atomo.training.watched import UNWATCHED, Watched
from atomo.training.worker_lines import WorkerLines
from atomo.transports import Transport

__all__ = ["Replicated"]

COMPARE_EVERY: Final = 50  # steps

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
        watch: Watched = UNWATCHED,
    ) -> None:
        self._job, self._transport, self._tell = job, transport, tell
        self._interrupted, self._timeout_s = interrupted, job.settings.timeout
        self._watch, self._drifted = watch, False
        self._replica = Replica(job, transport, device)
        self._progress = Progress(job)
        self._lines = WorkerLines(job, transport.rank + 1)
        self._saved = self._compared = 0
        self._cadence = Cadence(job.settings.eval_freq, job.settings.checkpoint_every)
        self._keeper: Keeper | None = None  # of rank 0

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
        dealt = take(self._transport, self._timeout_s)
        self._begin(dealt.step, dealt.state)
        return self._train(lambda done: None, lambda states, last: None)

    def _lead(self) -> str:
        """Trains, and keeps the folder."""
        keeper, replica = Keeper(self._job, self._tell, self._watch.owner), self._replica
        self._keeper = keeper
        with keeper.owning():
            self._deal(keeper.snapshot())

            def write(states: Sequence[Mapping[str, Tensor]], last: bool) -> None:
                optimizer = replica.optimizer_state() | exchange_in(states)
                workers = [*map(without_exchange, states)]
                parts = Parts(replica.model_state(), optimizer, workers)
                if last:
                    keeper.save_last(self.step, parts)
                else:
                    keeper.save(self.step, lambda: parts)

            with keeper.logging(self.step) as done:
                reason = self._train(done, write)
            keeper.end(self.step, reason)
        return reason

    def _deal(self, snapshot: Snapshot | None) -> None:
        """Has all ranks begin where a checkpoint ends, or anew."""
        if snapshot is None:
            states: list[dict[str, Tensor]] = [{}] * self._transport.size
        else:
            workers: Sequence[Mapping[str, Tensor]] = snapshot.workers or [{}]
            own = spread(workers, self._replica.ways.hosts.of, hosts_in(snapshot))
            shared = without_average(snapshot.optimizer)
            states = [joined(snapshot.model, shared, state) for state in own]
            states[0] = joined(snapshot.model, snapshot.optimizer, own[0])
        step = snapshot.step if snapshot else 0
        self._begin(step, states[0])
        deal(self._transport, states, step)

    def _begin(self, step: int, state: Mapping[str, Tensor]) -> None:
        self._replica.restore(step, state)
        # What was continued from another folder is not in this one yet.
        self._saved = step if self._job.resume == "auto" else -1

    def _train(self, done: Done, write: Write) -> str:
        """Takes steps until there are none left, or a rank asks for an end; says which."""
        reason = DONE
        self._cadence.begin()
        while self.step < self._job.last_step and reason == DONE:
            taken = self._take_step(done)
            reason = taken.ending
            if reason == DONE and (self._cadence.due(self.step) or taken.saving):
                self._save(write, last=self.step == self._job.last_step)
        if self._saved != self.step:
            self._save(write, last=True)
        self._transport.drain(self._timeout_s)
        self._replica.close()
        return reason

    def _take_step(self, done: Done) -> Taken:
        """Takes a step."""
        transport = self._transport
        before = transport.sent_bytes, transport.received_bytes
        asks = INTERRUPTED if self._interrupted() else DRIFTED if self._drifted else DONE
        taken = self._replica.take_step(ending=asks, saving=self._asks_to_save())
        sent, received = transport.sent_bytes - before[0], transport.received_bytes - before[1]
        parts = taken.exchanged, taken.factor, taken.update_s, taken.step_s
        step = self._progress.done(Step(self.step, *parts, sent, received, dense_bytes(self._job)))
        done(step)
        # All ranks must know before a step that it is the last one: so it is the one after this.
        self._drifted = self._watch.drifts(step) and self._can_save()
        self._lines.tell(self.step, taken.report, taken.metrics, taken.step_s, sent)
        if self.step % COMPARE_EVERY == 0:
            self._compare()
        return taken

    def _asks_to_save(self) -> bool:
        """Whether it is time for a checkpoint, by one clock for all, or for another attempt."""
        return self._keeper is not None and (self._cadence.is_old or self._keeper.tries_again)

    def _can_save(self) -> bool:
        """Whether there is hope for the checkpoint from which the next leg goes on."""
        return self._keeper is None or self._keeper.can_save(self.step)

    def _save(self, write: Write, *, last: bool) -> None:
        self._compare()
        write(self._collect(self._replica.own_state(), "the state"), last)
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
        digests = [bytes(state["digest"].tolist()) for state in found]
        usual = max(digests, key=Counter(digests).__getitem__, default=b"")
        odd = [rank for rank, digest in enumerate(digests) if digest != usual]
        if odd:
            raise ReplicasDiffer(
                f"at step {self.step} rank {odd} has other weights than rank "
                f"{digests.index(usual)}: do all hosts have the same kind of processor, and the "
                "same versions? The same command continues from the last checkpoint"
            )

    def _collect(self, state: Mapping[str, Tensor], what: str) -> list[dict[str, Tensor]]:
        return collect(self._transport, state, self.step, self._timeout_s, what)


def exchange_in(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What ranks beside rank 0 know of an exchange, which a checkpoint keeps as one."""
    return {n: held for state in states for n, held in state.items() if n.startswith(EXCHANGE)}


def dense_bytes(job: Job) -> int:
    """What a rank sends in an all-reduce of the gradient as float32."""
    return 2 * 4 * job.entries * (job.workers - 1) // job.workers
