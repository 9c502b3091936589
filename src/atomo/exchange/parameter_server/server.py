"""Master's end of the parameter server."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import FrameError, TooFewWorkers
from atomo.exchange.parameter_server.frames.commands import CommandSender, Deal
from atomo.exchange.parameter_server.frames.frame_receiver import FrameReceiver
from atomo.exchange.parameter_server.frames.gradient_router import GradientRouter
from atomo.exchange.parameter_server.frames.refusals import Refusals
from atomo.exchange.parameter_server.gradient_counts import GradientCounts
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.members.round_states import RoundStates
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

OnStates = Callable[[Sequence[State]], None]
"""Receives the states of all workers after a step in the middle of a round, in rank order."""
NO_LIMITS: Final = StepLimits()


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
        limits: StepLimits = NO_LIMITS,
    ) -> None:
        """Starts a server without an open step.

        Args:
            transport: to the workers.
            buckets: of each gradient.
            needed: number of gradients that close a step, or all living workers if fewer.
            timeout_s: longest wait for a worker.
            weight_sync: sends the weights to workers; None to send all weights at every step.
            late_counts: True if late gradients enter a later step, so that each gradient has the
                weight 1 / the number of all workers; False if `collect` returns the mean of the
                gradients in the sum.
            min_workers: smallest number of living workers for another step, spares included.
            spares: number of ranks, the last ones, that wait for the slot of a dead worker.
            images: samples of each step, divided among its workers.
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
        self._initial_shares = (1 / (len(self._workers) if late_counts else needed),)
        self._deadline = StepDeadline(limits)
        self._step, self._local_steps = 0, 1
        self._deal: Deal | None = None
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
        self._round_states = RoundStates(self._members)
        self._states = WorkerStates(self._members, self._commands, self._receiver, self._refuse)

    def expect(
        self, buckets: Sequence[Bucket], local_steps: int = 1, deal: Deal | None = None
    ) -> None:
        """Sets the buckets from the next step on: the same layout, perhaps other codecs.

        Args:
            buckets: with the codecs.
            local_steps: number of steps that workers take alone before they send a difference of
                weights; a step of the server is then a round.
            deal: divides the samples of a round by the speeds of workers; None: into equal parts.
        """
        self._buckets, self._local_steps, self._deal = buckets, local_steps, deal

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

    @property
    def counts_before(self) -> list[tuple[int, ...]]:
        """Counts as of `counts`, without what the open step asked for: a run that continues in the
        middle of a round asks for it again.
        """
        return self._assignments.counts_before

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
        """Asks all workers for the hash of their initial weights before the first step of a new
        run.

        A worker with the same weights needs no copy.

        Raises:
            FrameError: a worker sent another frame.
        """
        for worker in self.workers:
            self._commands.send_all(
                worker, self._weight_sync.initial_query(worker, weights), "a hash query"
            )
        while pending := [worker for worker in self._workers if self._weight_sync.awaits(worker)]:
            label = f"the hash of the initial weights of worker {pending}"
            if received := self._receiver.any(pending, label):
                raise FrameError(f"rank {received[0].source} sent no hash before the first step")

    def broadcast(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step: sends `weights` to all workers that do not compute an earlier step.

        The weights must not change before `commit`.
        """
        # The order of these calls is the protocol.
        # 1. Remove dead workers: no call below waits for their gradients or makes frames for them.
        self._remove_dead()
        # 2. Admit spares while the last step is still the current one. The state that they start
        #    with exists only once no worker computes. Until then late workers send frames of the
        #    last step, and their scales are answered for that step.
        self._admit_spares(self._members.fill(step))
        self._step, self._weights = step, weights
        # 3. Fix the workers of the step. They share its samples until the next step, so that a
        #    worker that starts late divides the samples as the other workers did.
        self._commands.open(step, self._local_steps, self._deal)
        # 4. Set the step of the router: from here on a frame of an earlier step is late.
        self._router.expect(step, self._buckets)
        # 5. Start the clock after the wait for spares, which is no delay of the workers.
        self._deadline.open()
        self._round_states.open(self._local_steps)
        # 6. Give version and weights to the sync before it makes frames for a worker.
        self._weight_sync.open(step, weights)
        # 7. Open the agreement on scales among the workers of 3. A worker proposes scales as soon
        #    as it has its gradient, so the agreement opens before the first command.
        self._agreement.open(step, min(self._needed, len(self._workers)), self._buckets)
        # 8. Send the commands last: all parts above are at the new step when answers arrive. A
        #    busy worker gets its command once its late gradient is complete.
        busy = self._assignments.outstanding
        self._commands.compute([worker for worker in self._workers if worker not in busy])

    def collect(
        self, out: Float[Tensor, " n"], on_states: OnStates = lambda states: None
    ) -> dict[int, Report]:
        """Waits for the gradients of the open step, writes their weighted sum into `out`, and
        closes the step.

        The step closes after `needed` gradients, or earlier or later by the limits of the step.

        Args:
            out: receives the sum.
            on_states: receives the states that workers send in the middle of a round.

        Returns:
            The reports of the workers in the sum, by rank.

        Raises:
            TooFewWorkers: fewer workers than `min_workers` are left.
        """
        while (closed := self._collect_step(out, on_states)) is None:
            # All workers died, or their frames were refused: the step starts again.
            self.broadcast(self._step, self._weights)
        step, counted = closed
        self._assignments.close_step(counted)
        self._refusals.accept([*counted])
        shares = () if step.shares == self._initial_shares else step.shares
        self._counted_step = CountedStep(self._step, counted, 1.0, shares)
        return {worker: step.reports[worker] for worker in counted}

    def _collect_step(
        self, out: Float[Tensor, " n"], on_states: OnStates
    ) -> tuple[StepGradients, Mapping[int, Mapping[int, Bytes]]] | None:
        """Returns the gradients of the open step and the frames in their sum; None if no gradient
        is left.
        """
        step = self._router.gradients = StepGradients(
            self._step, self._buckets, out, self._workers, self._needed, self._late_counts,
            self._local_steps * self._images,
        )  # fmt: skip
        counted = None
        while counted is None and self._check_members() and not step.has_no_workers:
            counts = len(step.reports), step.needed, step.possible
            if remaining_s := self._deadline.remaining_s(
                *counts, len(self._busy_workers(step.missing))
            ):
                if received := self._receive(step.missing, remaining_s):
                    self._route(*received, step, on_states)
            else:
                counted = self._router.close(step)
        self._router.gradients = None
        return None if counted is None else (step, counted)

    def _route(
        self, message: Message, header: Header, step: StepGradients, on_states: OnStates
    ) -> None:
        """Handles a frame of the open step or of an earlier one."""
        if header.kind is not Kind.STATE:
            self._router.route(message, header, step)
        elif header.step == self._step:
            self._store_state(message, on_states)

    def _store_state(self, message: Message, on_states: OnStates) -> None:
        """Stores a state in the middle of a round, and passes on the sets that are complete."""
        try:
            self._round_states.store(message)
        except FrameError as error:
            self._router.refuse(message.source, error)
            return
        while states := self._round_states.take():
            started = time.monotonic()
            on_states(states)
            # Nothing was received meanwhile: that is no silence and no delay of the workers.
            self._deadline.delay(time.monotonic() - started)
            for worker in self._workers:
                self._members.failure_detector.restart_timeout(worker)

    def commit(self, factor: float) -> None:
        """Records that the optimizer applied the collected gradients, with `factor` times the
        learning rate: the weights are now of the next version.
        """
        if self._counted_step is not None:
            self._weight_sync.commit(replace(self._counted_step, factor=factor))

    def save(self) -> list[dict[str, Tensor]]:
        """Returns the state of every living worker, once all workers are idle.

        Raises:
            TooFewWorkers: no worker is left.
        """
        self._wait_idle()
        final_frames = self._weight_sync.checkpoint_frames(self.workers)
        for worker, frames in final_frames.items():
            self._commands.send_all(worker, frames, f"the weights after step {self._step}")
        label = f"the checkpoint of step {self._step}"
        while not (states := self._states.collect(self.workers, label)) and self._members.spares:
            self._members.fill(self._step + 1)  # all workers died with their states
        if not states:
            raise TooFewWorkers(
                f"no worker is left to save; the checkpoint of step {self._step} "
                "is not written, and the previous one stays valid"
            )
        return [states[worker] for worker in sorted(states)]

    def restore(self, states: Sequence[State]) -> None:
        """Sends each worker the state that it continues from."""
        for worker, state in zip(self.workers, states, strict=True):
            self._states.send(worker, state)

    def hand_over(self, state: State) -> None:
        """Sends all workers the same state between two steps, once all of them are idle."""
        self._wait_idle()
        for worker in self.workers:
            self._states.send(worker, state)

    def stop(self) -> None:
        """Stops all workers and spares."""
        self._wait_idle()
        for worker in (*self.workers, *self._members.spares):
            self._commands.send(worker, Kind.STOP)
        self._members.drain()

    def _admit_spares(self, joining: Sequence[int]) -> None:
        """Sends the joining spares a part of the state of a living worker. Like all workers, they
        get weights and members with their first command.
        """
        if joining and self._spare_state is not None:
            self._wait_idle()
            self._states.copy_to(joining, self._spare_state)

    @property
    def has_busy_workers(self) -> bool:
        """True if a worker still computes a step."""
        return bool(self._assignments.outstanding)

    def _busy_workers(self, workers: Sequence[int]) -> list[int]:
        """Returns those of the workers that still compute an earlier step."""
        steps = self._assignments.outstanding
        return [worker for worker in workers if steps.get(worker, self._step) < self._step]

    def _check_members(self) -> bool:
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
        """Refuses the gradient that a worker is sending, and repeats a query for its state."""
        self._router.refuse(worker, error)
        self._states.repeat_query(worker)

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
        while pending := sorted(self._assignments.outstanding):
            if received := self._receive(pending):
                self._router.route_late(*received)

    def _receive(
        self, pending: Sequence[int], max_wait_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """Returns the next frame of a gradient; None after another event."""
        label = f"the gradients of worker {[*pending]} at step {self._step}"
        closed = self._router.gradients is None
        # Once the step is closed, `self._buckets` may be of the next step already.
        buckets = () if closed else self._buckets
        return self._receiver.gradient(
            pending, label, self._step, buckets, closed=closed,
            takes_states=self._local_steps > 1, max_wait_s=max_wait_s,
        )  # fmt: skip
