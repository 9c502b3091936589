"""The master's end of the parameter server."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.accounts import Balance
from atomo.communicators.parameter_server.agreement import Agreement
from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.collection import Collection
from atomo.communicators.parameter_server.down import Down, Taken, Weights
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.orders import Orders
from atomo.communicators.parameter_server.reception import Reception
from atomo.communicators.parameter_server.states import States
from atomo.communicators.report import Report
from atomo.communicators.state import State
from atomo.errors import FrameError, TooFewWorkers
from atomo.fusion import Bucket
from atomo.transports import Message, Transport
from atomo.wire import Header, Kind

__all__ = ["Server"]

T = TypeVar("T")


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
        """
        self._members = Members(transport, least, timeout_s, spares)
        self._buckets, self._needed, self._late_counts = buckets, needed, late_counts
        self._down = Weights() if down is None else down
        self._assignments = Assignments()
        self._orders = Orders(self._members, self._assignments, self._down, images)
        self._lent, self._weights = lent, torch.empty(0)
        self._workers = self._members.living
        self._began_with = tuple(self._workers)
        self._step = 0
        self._collection: Collection | None = None
        self._taken: Taken | None = None
        self._agreement = Agreement(self._orders)
        self._reception = Reception(
            self._members, self._assignments, self._orders, self._down, self._bury
        )
        self._states = States(self._members, self._orders, self._reception)
        self.decode_s = 0.0  # spent on decoding and adding up, so far

    def expect(self, buckets: Sequence[Bucket]) -> None:
        """Expects these buckets from the next step on: the same layout, perhaps other codecs."""
        self._buckets = buckets

    @property
    def workers(self) -> tuple[int, ...]:
        """Who is left."""
        return tuple(self._workers)

    def take_notes(self) -> list[str]:
        """What a person should know of the workers and their weights, since this was last asked."""
        notes = [*self._members.notes, *self._down.notes]
        self._members.notes.clear()
        self._down.notes.clear()
        return notes

    def balance(self) -> Balance:
        """What became of the gradients that were asked for, since this was last asked."""
        return self._assignments.balance()

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
        self._down.open(step, weights)
        self._agreement.open(min(self._needed, len(self._workers)), self._buckets)
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
        while not (step := self._collected(out)).is_complete:
            self.broadcast(self._step, self._weights)  # all died, and spares begin it anew
        counted = self._timed(step.close)
        self._assignments.use(counted)
        share = None if self.workers == self._began_with else step.share
        self._taken = Taken(self._step, counted, 1.0, share)
        return {worker: step.reports[worker] for worker in counted}

    def took(self, factor: float) -> None:
        """What was collected made a step, `factor` times as long: the weights are the next."""
        if self._taken is not None:
            self._down.took(replace(self._taken, factor=factor))

    def _collected(self, out: Float[Tensor, " n"]) -> Collection:
        """The gradients of the open step: enough of them, or none, where everybody died."""
        step = self._collection = Collection(
            self._step, self._buckets, out, self._workers, self._needed, self._late_counts
        )
        while self._all_are_well() and not step.is_complete and step.missing:
            if received := self._receive(step.missing):
                self._take_in(*received, step)
        self._collection = None
        return step

    def _take_in(self, message: Message, header: Header, step: Collection) -> None:
        worker = message.source
        if header.kind is Kind.SCALES:
            self._answer_scales(message, header)
        elif header.step != self._step:
            self._readmit(header, worker)
        elif header.kind is Kind.REPORT:
            step.complete(worker, message.data)
            self._assignments.complete(worker)
        else:
            self._timed(lambda: step.add(worker, header.bucket, message.data))

    def _timed(self, decode: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = decode()
        self.decode_s += time.perf_counter() - started
        return result

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

    def _all_are_well(self) -> bool:
        """True. Who is not is taken out, and if too few are left, that is an error."""
        self._bury()
        try:
            self._members.check()
        except TooFewWorkers:
            self._collection = None
            self._assignments.abandon(self._workers)
            raise
        return True

    def _bury(self) -> None:
        """Takes those who died out of all that is waited for."""
        for worker in self._members.take_lost():
            self._assignments.lose(worker)
            self._down.lose(worker)
            if self._collection is not None:
                self._collection.drop(worker)
            self._agreement.lose(worker, self._workers)

    def _answer_scales(self, message: Message, header: Header) -> None:
        if header.step == self._step:
            self._agreement.answer(message)
        else:
            self._agreement.refuse(message.source)

    def _readmit(self, header: Header, worker: int) -> None:
        """Gives a worker whose whole gradient came too late the step that is open."""
        if header.kind is Kind.REPORT:
            self._assignments.late(worker)
            self._orders.compute([worker])

    def _settle(self) -> None:
        """Waits until no worker computes any more. What still comes in came too late."""
        self._bury()
        while owing := sorted(self._assignments.owed):
            received = self._receive(owing)
            if received is None:
                continue
            message, header = received
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.kind is Kind.REPORT:
                self._assignments.late(message.source)

    def _receive(self, owing: Sequence[int]) -> tuple[Message, Header] | None:
        """The next frame of a gradient; None: there was something else to see to."""
        what = f"the gradients of worker {[*owing]} at step {self._step}"
        closed = self._collection is None
        buckets = () if closed else self._buckets  # those may be of the next step already
        return self._reception.gradient(owing, what, self._step, buckets, closed=closed)
