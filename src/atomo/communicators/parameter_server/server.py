"""The master's end of the parameter server."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.accounts import Balance
from atomo.communicators.parameter_server.agreement import Agreement
from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.closing import Closing, Limits
from atomo.communicators.parameter_server.collection import Collection
from atomo.communicators.parameter_server.down import Down, Taken, Weights
from atomo.communicators.parameter_server.intake import Intake
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.orders import Orders
from atomo.communicators.parameter_server.reception import Reception
from atomo.communicators.parameter_server.refusals import Refusals
from atomo.communicators.parameter_server.states import States
from atomo.communicators.report import Report
from atomo.communicators.state import State
from atomo.errors import FrameError, TooFewWorkers
from atomo.fusion import Bucket
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Header, Kind

__all__ = ["Server"]

ANY_TIME: Final = Limits()


@final
class Server:
    """The master's end."""

    def __init__(
        self,
        transport: Transport,
        buckets: Sequence[Bucket],
        needed: int,
        timeout_s: float,
        down: Down | None = None,
        late_counts: bool = False,
        least: int = 1,
        spares: int = 0,
        images: int = 0,
        lent: Callable[[State], State] | None = None,
        most_strikes: int = 3,
        limits: Limits = ANY_TIME,
    ) -> None:
        """A server.

        Args:
            transport: what connects it with the workers.
            buckets: what they send.
            needed: how many of them close a step, as long as so many are left.
            timeout_s: the longest wait for one of them.
            down: how the weights come to the workers; None: whole, at every step.
            late_counts: whether each gradient weighs what it would in a step of all workers, since
                what is late comes back; else the sum is the mean of those that count.
            least: how many workers must be left for another step, spares among them.
            spares: how many ranks, the last, wait to take the place of a worker that is gone.
            images: of each step, which its workers divide.
            lent: what of the state of another worker a spare begins with; None: nothing.
            most_strikes: refused frames in a row that drop a worker.
            limits: how long a step waits for gradients.
        """
        self._members = Members(transport, least, timeout_s, spares)
        self._buckets, self._needed, self._late_counts = buckets, needed, late_counts
        self._down = Weights() if down is None else down
        self._images, self._assignments = images, Assignments()
        self._orders = Orders(self._members, self._assignments, self._down, images)
        self._lent, self._weights = lent, torch.empty(0)
        self._workers = self._members.living
        self._usual = (1 / (len(self._workers) if late_counts else needed),)
        self._closing = Closing(limits)
        self._step = 0
        self._taken: Taken | None = None
        self._agreement = Agreement(self._orders)
        self._refusals = Refusals(
            self._members, self._assignments, self._agreement, self._down, most_strikes
        )
        self._intake = Intake(
            self._members, self._assignments, self._agreement, self._orders, self._refusals
        )
        self._reception = Reception(
            self._members, self._assignments, self._orders, self._down, self._refusals.leftovers,
            self._bury, self._refuse,
        )  # fmt: skip
        self._states = States(self._members, self._orders, self._reception, self._refuse)

    def expect(self, buckets: Sequence[Bucket]) -> None:
        """Expects these buckets from the next step on: the same layout, perhaps other codecs."""
        self._buckets = buckets

    @property
    def decode_s(self) -> float:
        """Spent on decoding and adding up, so far."""
        return self._intake.decode_s

    @property
    def workers(self) -> tuple[int, ...]:
        """Who is left."""
        return tuple(self._workers)

    def take_notes(self) -> list[str]:
        """What a person should know of the workers and their weights, since this was last asked."""
        kept = (self._refusals.notes, self._members.notes, self._down.notes)
        notes = [note for one in kept for note in one]
        for one in kept:
            one.clear()
        return notes

    def balance(self) -> Balance:
        """What became of the gradients that were asked for, since this was last asked."""
        return self._assignments.balance(self._refusals.take_senders())

    @property
    def counts(self) -> list[tuple[int, ...]]:
        """Of gradients and images what became of them since their balance was last asked for: a
        checkpoint keeps it, for the balance of the step after it.
        """
        return self._assignments.counts

    def add_counts(self, counts: Sequence[Sequence[int]]) -> None:
        """What `counts` were where the run goes on."""
        self._assignments.add(counts)

    def slowest(self) -> tuple[int, float]:
        """The worker whose gradients take longest, and how many times the median; 0: not known."""
        return self._members.pace.slowest()

    def image_balance(self) -> Balance:
        """The same of the images that they are of."""
        return self._assignments.image_balance()

    def meet(self, weights: Float[Tensor, " n"]) -> None:
        """Before the first step of a run that starts anew: who built the same weights has them."""
        for worker in self.workers:
            self._orders.send_all(worker, self._down.greet(worker, weights), "a greeting")
        while owing := [worker for worker in self._workers if self._down.awaits(worker)]:
            what = f"the hash of the initial weights of worker {owing}"
            if received := self._reception.any(owing, what):
                raise FrameError(f"rank {received[0].source} sent no hash before the first step")

    def broadcast(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step: every worker that is not still busy with an earlier one comes to `weights`.

        They must not change before `took`.
        """
        self._bury()
        self._admit(self._members.fill(step))
        self._step, self._weights = step, weights
        self._orders.open(step)
        self._intake.expect(step, self._buckets)
        self._closing.open()
        self._down.open(step, weights)
        self._agreement.open(step, min(self._needed, len(self._workers)), self._buckets)
        busy = self._assignments.owed
        self._orders.compute([worker for worker in self._workers if worker not in busy])

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
        self._taken = Taken(self._step, counted, 1.0, shares)
        return {worker: step.reports[worker] for worker in counted}

    def _collected(
        self, out: Float[Tensor, " n"]
    ) -> tuple[Collection, Mapping[int, Mapping[int, Bytes]]] | None:
        """The gradients of the open step, and the frames in their sum; None: of nobody."""
        step = self._intake.collection = Collection(
            self._step, self._buckets, out, self._workers, self._needed, self._late_counts,
            self._images,
        )  # fmt: skip
        counted = None
        while counted is None and self._all_are_well() and not step.is_deserted:
            counts = len(step.reports), step.needed, step.possible
            if left_s := self._closing.left_s(*counts, len(self._behind(step.missing))):
                if received := self._receive(step.missing, left_s):
                    self._intake.take(*received, step)
            else:
                counted = self._intake.closed(step)
        self._intake.collection = None
        return None if counted is None else (step, counted)

    def took(self, factor: float) -> None:
        """What was collected made a step, `factor` times as long: the weights are the next."""
        if self._taken is not None:
            self._down.took(replace(self._taken, factor=factor))

    def save(self) -> list[dict[str, Tensor]]:
        """The state of every worker that is left, once all are done with what they compute.

        Raises:
            TooFewWorkers: none is left.
        """
        self._settle()
        settled = self._down.settle(self.workers)
        for worker, frames in settled.items():
            self._orders.send_all(worker, frames, f"the weights after step {self._step}")
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
        self._settle()
        for worker in (*self.workers, *self._members.spares):
            self._orders.send(worker, Kind.STOP)
        self._members.drain()

    def _admit(self, joining: Sequence[int]) -> None:
        """Gives those who join what they begin with. The weights come to them with their first
        step, as to all others, and who shares it.
        """
        if joining and self._lent is not None:
            self._settle()
            self._states.lend(joining, self._lent)

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
        self._bury()
        try:
            self._members.check()
        except TooFewWorkers:
            self._intake.collection = None
            self._assignments.abandon(self._workers)
            raise
        return True

    def _refuse(self, worker: int, error: FrameError) -> None:
        """Goes on without what a worker is sending."""
        self._intake.refuse(worker, error)
        self._states.ask_again(worker)

    def _bury(self) -> None:
        """Takes those who died out of all that is waited for."""
        for worker in self._members.take_lost():
            self._refusals.lose(worker)
            self._assignments.lose(worker)
            self._down.lose(worker)
            self._intake.lose(worker)

    def _settle(self) -> None:
        """Waits until no worker computes any more. What still comes in came too late."""
        self._bury()
        while owing := sorted(self._assignments.owed):
            if received := self._receive(owing):
                self._intake.turn_away(*received)

    def _receive(
        self, owing: Sequence[int], most_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """The next frame of a gradient; None: there was something else to see to."""
        what = f"the gradients of worker {[*owing]} at step {self._step}"
        closed = self._intake.collection is None
        buckets = () if closed else self._buckets  # those may be of the next step already
        return self._reception.gradient(
            owing, what, self._step, buckets, closed=closed, most_s=most_s
        )
