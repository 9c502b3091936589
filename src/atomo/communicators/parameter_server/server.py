"""The master's end of the parameter server."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.commands import CommandSender
from atomo.communicators.parameter_server.frame_receiver import FrameReceiver
from atomo.communicators.parameter_server.gradient_counts import GradientCounts
from atomo.communicators.parameter_server.gradient_router import GradientRouter
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.refusals import Refusals
from atomo.communicators.parameter_server.scale_agreement import ScaleAgreement
from atomo.communicators.parameter_server.step_deadline import StepDeadline, StepLimits
from atomo.communicators.parameter_server.step_gradients import StepGradients
from atomo.communicators.parameter_server.weight_sync import CountedStep, FullSync, WeightSync
from atomo.communicators.parameter_server.worker_states import WorkerStates
from atomo.communicators.report import Report
from atomo.communicators.state import State
from atomo.errors import FrameError, TooFewWorkers
from atomo.fusion import Bucket
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Header, Kind

__all__ = ["Server"]

ANY_TIME: Final = StepLimits()


@final
class Server:
    """The master's end."""

    def __init__(
        self,
        transport: Transport,
        buckets: Sequence[Bucket],
        needed: int,
        timeout_s: float,
        weight_sync: WeightSync | None = None,
        late_counts: bool = False,
        min_workers: int = 1,
        spares: int = 0,
        images: int = 0,
        spare_state: Callable[[State], State] | None = None,
        max_strikes: int = 3,
        limits: StepLimits = ANY_TIME,
    ) -> None:
        """A server.

        Args:
            transport: what connects it with the workers.
            buckets: what they send.
            needed: how many of them close a step, as long as so many are left.
            timeout_s: the longest wait for one of them.
            weight_sync: how workers get the weights; None: whole, at every step.
            late_counts: whether each gradient weighs what it would in a step of all workers, since
                what is late comes back; else the sum is the mean of those that count.
            min_workers: smallest number of living workers for another step, spares included.
            spares: how many ranks, the last, wait to take the place of a worker that is gone.
            images: of each step, which its workers divide.
            spare_state: the part of another worker's state that a spare starts with; None: no part.
            max_strikes: consecutive refused frames after which a worker is dropped.
            limits: how long a step waits for gradients.
        """
        self._members = Members(transport, min_workers, timeout_s, spares)
        self._buckets, self._needed, self._late_counts = buckets, needed, late_counts
        self._weight_sync = FullSync() if weight_sync is None else weight_sync
        self._images, self._assignments = images, Assignments()
        self._commands = CommandSender(self._members, self._assignments, self._weight_sync, images)
        self._spare_state, self._weights = spare_state, torch.empty(0)
        self._workers = self._members.living
        self._usual = (1 / (len(self._workers) if late_counts else needed),)
        self._deadline = StepDeadline(limits)
        self._step = 0
        self._counted_step: CountedStep | None = None
        self._agreement = ScaleAgreement(self._commands)
        self._refusals = Refusals(
            self._members, self._assignments, self._agreement, self._weight_sync, max_strikes
        )
        self._router = GradientRouter(
            self._members, self._assignments, self._agreement, self._commands, self._refusals
        )
        self._receiver = FrameReceiver(
            self._members, self._assignments, self._commands, self._weight_sync,
            self._refusals.refused_tail, self._remove_dead, self._refuse,
        )  # fmt: skip
        self._states = WorkerStates(self._members, self._commands, self._receiver, self._refuse)

    def expect(self, buckets: Sequence[Bucket]) -> None:
        """Expects these buckets from the next step on: the same layout, perhaps other codecs."""
        self._buckets = buckets

    @property
    def decode_s(self) -> float:
        """Spent on decoding and adding up, so far."""
        return self._router.decode_s

    @property
    def workers(self) -> tuple[int, ...]:
        """Who is left."""
        return tuple(self._workers)

    def take_notes(self) -> list[str]:
        """What a person should know of the workers and their weights, since this was last asked."""
        kept = (self._refusals.notes, self._members.notes, self._weight_sync.notes)
        notes = [note for one in kept for note in one]
        for one in kept:
            one.clear()
        return notes

    def gradient_counts(self) -> GradientCounts:
        """What became of the gradients that were asked for, since this was last asked."""
        return self._assignments.gradient_counts(self._refusals.take_senders())

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """Of gradients and images what became of them since their balance was last asked for: a
        checkpoint keeps it, for the balance of the step after it.
        """
        return self._assignments.counts

    def restore_counts(self, counts: Sequence[Sequence[int]]) -> None:
        """What `counts` were where the run goes on."""
        self._assignments.add(counts)

    def slowest(self) -> tuple[int, float]:
        """The worker whose gradients take longest, and how many times the median; 0: not known."""
        return self._members.failure_detector.slowest()

    def image_counts(self) -> GradientCounts:
        """The same of the images that they are of."""
        return self._assignments.image_counts()

    def meet(self, weights: Float[Tensor, " n"]) -> None:
        """Before the first step of a run that starts anew: who built the same weights has them."""
        for worker in self.workers:
            self._commands.send_all(
                worker, self._weight_sync.initial_query(worker, weights), "a greeting"
            )
        while owing := [worker for worker in self._workers if self._weight_sync.awaits(worker)]:
            what = f"the hash of the initial weights of worker {owing}"
            if received := self._receiver.any(owing, what):
                raise FrameError(f"rank {received[0].source} sent no hash before the first step")

    def broadcast(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step: every worker that is not still busy with an earlier one comes to `weights`.

        They must not change before `took`.
        """
        self._remove_dead()
        self._admit_spares(self._members.fill(step))
        self._step, self._weights = step, weights
        self._commands.open(step)
        self._router.expect(step, self._buckets)
        self._deadline.open()
        self._weight_sync.open(step, weights)
        self._agreement.open(step, min(self._needed, len(self._workers)), self._buckets)
        busy = self._assignments.owed
        self._commands.compute([worker for worker in self._workers if worker not in busy])

    def collect(self, out: Float[Tensor, " n"]) -> dict[int, Report]:
        """Closes the step: `out` becomes the mean gradient of the first `needed` workers,
        or their sum times the share that each has.

        Returns:
            Their reports, by rank.

        Raises:
            TooFewWorkers: so many died that the step is not to be taken.
        """
        while (closed := self._collected(out)) is None:
            self.broadcast(self._step, self._weights)  # all died or were refused: it begins anew
        step, counted = closed
        self._assignments.use(counted)
        self._refusals.accept([*counted])
        shares = () if step.shares == self._usual else step.shares
        self._counted_step = CountedStep(self._step, counted, 1.0, shares)
        return {worker: step.reports[worker] for worker in counted}

    def _collected(
        self, out: Float[Tensor, " n"]
    ) -> tuple[StepGradients, Mapping[int, Mapping[int, Bytes]]] | None:
        """The gradients of the open step, and the frames in their sum; None: of nobody."""
        step = self._router.gradients = StepGradients(
            self._step, self._buckets, out, self._workers, self._needed, self._late_counts,
            self._images,
        )  # fmt: skip
        counted = None
        while counted is None and self._all_are_well() and not step.has_no_workers:
            counts = len(step.reports), step.needed, step.possible
            if left_s := self._deadline.remaining_s(*counts, len(self._behind(step.missing))):
                if received := self._receive(step.missing, left_s):
                    self._router.take(*received, step)
            else:
                counted = self._router.closed(step)
        self._router.gradients = None
        return None if counted is None else (step, counted)

    def commit(self, factor: float) -> None:
        """What was collected made a step, `factor` times as long: the weights are the next."""
        if self._counted_step is not None:
            self._weight_sync.commit(replace(self._counted_step, factor=factor))

    def save(self) -> list[dict[str, Tensor]]:
        """The state of every worker that is left, once all are done with what they compute.

        Raises:
            TooFewWorkers: none is left.
        """
        self._wait_idle()
        settled = self._weight_sync.settle(self.workers)
        for worker, frames in settled.items():
            self._commands.send_all(worker, frames, f"the weights after step {self._step}")
        what = f"the checkpoint of step {self._step}"
        while not (states := self._states.ask(self.workers, what)) and self._members.spares:
            self._members.fill(self._step + 1)  # all others died, with all that they kept
        if not states:
            raise TooFewWorkers(
                f"no worker is left to save; the checkpoint of step {self._step} "
                "is not written, and the one before it is kept"
            )
        return [states[worker] for worker in sorted(states)]

    def restore(self, states: Sequence[State]) -> None:
        """Gives each worker the state that it continues from."""
        for worker, state in zip(self.workers, states, strict=True):
            self._states.give(worker, state)

    def stop(self) -> None:
        """Ends the run of every worker."""
        self._wait_idle()
        for worker in (*self.workers, *self._members.spares):
            self._commands.send(worker, Kind.STOP)
        self._members.drain()

    def _admit_spares(self, joining: Sequence[int]) -> None:
        """Gives those who join what they begin with. The weights come to them with their first
        step, as to all others, and who shares it.
        """
        if joining and self._spare_state is not None:
            self._wait_idle()
            self._states.lend(joining, self._spare_state)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody still computes a step that is closed."""
        return bool(self._assignments.owed)

    def _behind(self, workers: Sequence[int]) -> list[int]:
        """Who of them still computes a step before the open one."""
        owed = self._assignments.owed
        return [worker for worker in workers if owed.get(worker, self._step) < self._step]

    def _all_are_well(self) -> bool:
        """True. Who is not is taken out, and if too few are left, that is an error."""
        self._remove_dead()
        try:
            self._members.check()
        except TooFewWorkers:
            self._router.gradients = None
            self._assignments.abandon(self._workers)
            raise
        return True

    def _refuse(self, worker: int, error: FrameError) -> None:
        """Goes on without what a worker is sending."""
        self._router.refuse(worker, error)
        self._states.ask_again(worker)

    def _remove_dead(self) -> None:
        """Takes those who died out of all that is waited for."""
        for worker in self._members.take_lost():
            self._refusals.lose(worker)
            self._assignments.lose(worker)
            self._weight_sync.lose(worker)
            self._router.lose(worker)

    def _wait_idle(self) -> None:
        """Waits until no worker computes any more. What still comes in came too late."""
        self._remove_dead()
        while owing := sorted(self._assignments.owed):
            if received := self._receive(owing):
                self._router.route_late(*received)

    def _receive(
        self, owing: Sequence[int], most_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """The next frame of a gradient; None: there was something else to see to."""
        what = f"the gradients of worker {[*owing]} at step {self._step}"
        closed = self._router.gradients is None
        buckets = () if closed else self._buckets  # those may be of the next step already
        return self._receiver.gradient(
            owing, what, self._step, buckets, closed=closed, most_s=most_s
        )
