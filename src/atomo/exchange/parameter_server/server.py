"""The master's end of the parameter server."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError, TooFewWorkers
from atomo.exchange.parameter_server.frames.commands import CommandSender
from atomo.exchange.parameter_server.frames.frame_receiver import FrameReceiver
from atomo.exchange.parameter_server.frames.gradient_router import GradientRouter
from atomo.exchange.parameter_server.frames.refusals import Refusals
from atomo.exchange.parameter_server.gradient_counts import GradientCounts
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.members.worker_states import WorkerStates
from atomo.exchange.parameter_server.scale_agreement import ScaleAgreement
from atomo.exchange.parameter_server.step_deadline import StepDeadline, StepLimits
from atomo.exchange.parameter_server.step_gradients import StepGradients
from atomo.exchange.parameter_server.weight_sync import CountedStep, FullSync, WeightSync
from atomo.exchange.report import Report
from atomo.exchange.state import State
from atomo.fusion import Bucket
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Header, Kind

__all__ = ["Server"]

ANY_TIME: Final = StepLimits()


@final
class Server:
    """Master's end of the parameter server."""

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
        """Starts a server without an open step.

        Args:
            transport: to the workers.
            buckets: of each gradient.
            needed: number of gradients that close a step, or all living workers if fewer.
            timeout_s: longest wait for a worker.
            weight_sync: sends the weights to workers; None to send all weights at every step.
            late_counts: True if each gradient has the weight that it has in a step of all workers,
                since late gradients come back; False for the mean of the gradients in the sum.
            min_workers: smallest number of living workers for another step, spares included.
            spares: number of ranks, the last ones, that wait for the slot of a dead worker.
            images: samples of each step, which its workers divide.
            spare_state: returns the part of another worker's state that a spare starts with; None
                for no part.
            max_strikes: consecutive refused frames after which a worker is dropped.
            limits: of the wait for gradients.
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
        """Sets the buckets from the next step on: the same layout, perhaps other codecs."""
        self._buckets = buckets

    @property
    def decode_s(self) -> float:
        """Seconds spent on decoding and adding so far."""
        return self._router.decode_s

    @property
    def workers(self) -> tuple[int, ...]:
        """Living workers in rank order."""
        return tuple(self._workers)

    def take_notes(self) -> list[str]:
        """Returns and clears the notes for the user about workers and their weights."""
        sources = (self._refusals.notes, self._members.notes, self._weight_sync.notes)
        notes = [note for source in sources for note in source]
        for source in sources:
            source.clear()
        return notes

    def gradient_counts(self) -> GradientCounts:
        """Returns the counts of gradients since the last call."""
        return self._assignments.gradient_counts(self._refusals.take_senders())

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """Counts of gradients and of images since the last balance; a checkpoint keeps them for the
        balance of the next step.
        """
        return self._assignments.counts

    def restore_counts(self, counts: Sequence[Sequence[int]]) -> None:
        """Adds the counts of a checkpoint."""
        self._assignments.restore(counts)

    def slowest(self) -> tuple[int, float]:
        """Returns the slowest worker, and the ratio of its gradient time to the median; (0, 1.0) if
        unknown.
        """
        return self._members.failure_detector.slowest()

    def image_counts(self) -> GradientCounts:
        """Returns the counts of images since the last call."""
        return self._assignments.image_counts()

    def check_initial_weights(self, weights: Float[Tensor, " n"]) -> None:
        """Asks all workers for the hash of their initial weights, before the first step of a new
        run: a worker with the same weights needs no copy.
        """
        for worker in self.workers:
            self._commands.send_all(
                worker, self._weight_sync.initial_query(worker, weights), "a greeting"
            )
        while owing := [worker for worker in self._workers if self._weight_sync.awaits(worker)]:
            what = f"the hash of the initial weights of worker {owing}"
            if received := self._receiver.any(owing, what):
                raise FrameError(f"rank {received[0].source} sent no hash before the first step")

    def broadcast(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step: every worker that is not busy with an earlier step gets `weights`.

        The weights must not change before `commit`.
        """
        # The order of these calls is the protocol.
        # 1. The dead go first: no call below waits for their gradients or makes frames for them.
        self._remove_dead()
        # 2. Spares join while the last step is still the current one. The state that they start
        #    with exists only once no worker computes, and until then late workers send frames of
        #    that step, and get its answers to their scales.
        self._admit_spares(self._members.fill(step))
        self._step, self._weights = step, weights
        # 3. The workers of the step are final now. They share its samples until the next step, so
        #    that a worker that starts late divides them as the others did.
        self._commands.open(step)
        # 4. From here on a frame of an earlier step is late.
        self._router.expect(step, self._buckets)
        # 5. The clock starts after the wait for spares, which is not the workers' delay.
        self._deadline.open()
        # 6. The sync must know the version and the weights before it makes frames for a worker.
        self._weight_sync.open(step, weights)
        # 7. The number of workers that agree on scales is of the members of 3. A worker asks as
        #    soon as it has its gradient, so the agreement is open before the first command.
        self._agreement.open(step, min(self._needed, len(self._workers)), self._buckets)
        # 8. Only now frames are sent: answers find all parts at the same step. A busy worker gets
        #    its command once its late gradient is complete.
        busy = self._assignments.owed
        self._commands.compute([worker for worker in self._workers if worker not in busy])

    def collect(self, out: Float[Tensor, " n"]) -> dict[int, Report]:
        """Closes the step: `out` becomes the mean gradient of the first `needed` workers, or their
        sum, each gradient times its share.

        Returns:
            The reports by rank.

        Raises:
            TooFewWorkers: fewer workers than `min_workers` are left.
        """
        while (closed := self._collected(out)) is None:
            self.broadcast(self._step, self._weights)  # all died or were refused: once more
        step, counted = closed
        self._assignments.close_step(counted)
        self._refusals.accept([*counted])
        shares = () if step.shares == self._usual else step.shares
        self._counted_step = CountedStep(self._step, counted, 1.0, shares)
        return {worker: step.reports[worker] for worker in counted}

    def _collected(
        self, out: Float[Tensor, " n"]
    ) -> tuple[StepGradients, Mapping[int, Mapping[int, Bytes]]] | None:
        """Returns the gradients of the open step and the frames in their sum; None if no gradient
        is left.
        """
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
        """Notes that the collected gradients were applied, at `factor` times the learning rate: the
        weights are those of the next version.
        """
        if self._counted_step is not None:
            self._weight_sync.commit(replace(self._counted_step, factor=factor))

    def save(self) -> list[dict[str, Tensor]]:
        """Returns the state of every living worker, once all workers are idle.

        Raises:
            TooFewWorkers: none is left.
        """
        self._wait_idle()
        final_frames = self._weight_sync.checkpoint_frames(self.workers)
        for worker, frames in final_frames.items():
            self._commands.send_all(worker, frames, f"the weights after step {self._step}")
        what = f"the checkpoint of step {self._step}"
        while not (states := self._states.ask(self.workers, what)) and self._members.spares:
            self._members.fill(self._step + 1)  # all others died with their states
        if not states:
            raise TooFewWorkers(
                f"no worker is left to save; the checkpoint of step {self._step} "
                "is not written, and the one before it is kept"
            )
        return [states[worker] for worker in sorted(states)]

    def restore(self, states: Sequence[State]) -> None:
        """Sends each worker the state that it continues from."""
        for worker, state in zip(self.workers, states, strict=True):
            self._states.give(worker, state)

    def stop(self) -> None:
        """Stops all workers and spares."""
        self._wait_idle()
        for worker in (*self.workers, *self._members.spares):
            self._commands.send(worker, Kind.STOP)
        self._members.drain()

    def _admit_spares(self, joining: Sequence[int]) -> None:
        """Sends the state of a living worker to the joining spares. They get weights and members
        with their first command, as all workers do.
        """
        if joining and self._spare_state is not None:
            self._wait_idle()
            self._states.lend(joining, self._spare_state)

    @property
    def is_waited_for(self) -> bool:
        """True if a worker still computes a closed step."""
        return bool(self._assignments.owed)

    def _behind(self, workers: Sequence[int]) -> list[int]:
        """Returns the workers that still compute an earlier step."""
        owed = self._assignments.owed
        return [worker for worker in workers if owed.get(worker, self._step) < self._step]

    def _all_are_well(self) -> bool:
        """Returns True once dead workers are removed. Raises TooFewWorkers if too few are left."""
        self._remove_dead()
        try:
            self._members.check()
        except TooFewWorkers:
            self._router.gradients = None
            self._assignments.abandon(self._workers)
            raise
        return True

    def _refuse(self, worker: int, error: FrameError) -> None:
        """Refuses the frames of the gradient that a worker sends, and asks again for its state if
        that is due.
        """
        self._router.refuse(worker, error)
        self._states.ask_again(worker)

    def _remove_dead(self) -> None:
        """Removes dead workers from all parts that wait for them."""
        for worker in self._members.take_lost():
            self._refusals.lose(worker)
            self._assignments.lose(worker)
            self._weight_sync.reset_worker(worker)
            self._router.lose(worker)

    def _wait_idle(self) -> None:
        """Waits until no worker computes; gradients that arrive meanwhile are late."""
        self._remove_dead()
        while owing := sorted(self._assignments.owed):
            if received := self._receive(owing):
                self._router.route_late(*received)

    def _receive(
        self, owing: Sequence[int], most_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """Returns the next frame of a gradient; None if another event happened."""
        what = f"the gradients of worker {[*owing]} at step {self._step}"
        closed = self._router.gradients is None
        buckets = () if closed else self._buckets  # those may be of the next step already
        return self._receiver.gradient(
            owing, what, self._step, buckets, closed=closed, most_s=most_s
        )
