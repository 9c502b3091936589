"""The workers that are there, the spares that wait, and the frames between them and the master.

A worker that is gone is out for the rest of the job: nothing is sent to it, and what it sent and
nobody has read is dropped. A spare takes its place between two steps, under a rank of its own, so
that no frame of the one can be taken for one of the other. A worker that does not answer in time is
killed on its host, and so becomes one that is gone; of several at once first those that are stopped
or stuck, since the others may wait for them, as in a chain. Nothing is agreed on among the workers,
and nothing but point-to-point messages is used: those between the living go on undisturbed.
"""

import math
from collections.abc import Sequence
from typing import Final, final

from atomo.communicators.parameter_server.failure_detector import FailureDetector
from atomo.errors import DeadlineExpired, PeerLost, TooFewWorkers, TransportError
from atomo.transports import Message, Transport
from atomo.wire import Bytes

__all__ = ["Members"]

MASTER: Final = 0
NEARLY: Final = 0.9  # of the timeout: who is silent for so long is as silent as others


@final
class Members:
    """Who takes part in steps, and who waits for that."""

    def __init__(
        self, transport: Transport, min_workers: int, timeout_s: float, spares: int = 0
    ) -> None:
        """All workers of a job, but for the spares.

        Args:
            transport: what connects them with the master.
            min_workers: smallest number of living workers, spares included.
            timeout_s: the longest wait for one of them.
            spares: how many ranks, the last, wait.
        """
        self.everyone = tuple(range(1, transport.size))
        """All ranks but the master."""
        self.count = len(self.everyone) - spares
        """How many take part, if so many are there."""
        self.living = [*self.everyone[: self.count]]
        """Who takes part, in the order of ranks."""
        self.spares = [*self.everyone[self.count :]]
        """Who waits."""
        self.notes: list[str] = []
        """What a person should know, until somebody takes it out."""
        self.failure_detector = FailureDetector(timeout_s, transport.cpu_time_s)
        """How long their answers take."""
        self._transport, self._min_workers, self._timeout_s = transport, min_workers, timeout_s
        self._lost: list[int] = []  # and nobody has asked yet
        self._fenced: set[int] = set()
        self._spared: set[int] = set()  # who was silent beside others, and was given time again

    def check(self) -> None:
        """Raises TooFewWorkers where fewer are left than must be."""
        left = len(self.living) + len(self.spares)
        if left < self._min_workers:
            dead = sorted({*self.everyone} - {*self.living} - {*self.spares})
            raise TooFewWorkers(
                f"worker {dead} of {len(self.everyone)} died, which leaves {left}; --min-workers "
                f"is {self._min_workers}"
            )

    def fill(self, step: int) -> list[int]:
        """Before `step` opens: spares take the places of those who are gone; which ones do."""
        free = self.count - len(self.living)
        joining, self.spares[:] = self.spares[:free], self.spares[free:]
        self.living[:] = sorted(self.living + joining)
        self.notes += [
            f"worker {worker}, a spare, takes part from step {step} on" for worker in joining
        ]
        return joining

    def take_lost(self) -> list[int]:
        """Who is gone since this was last asked."""
        lost, self._lost = self._lost, []
        return lost

    def send(self, worker: int, frame: Bytes, what: str) -> None:
        """Starts sending; nothing goes to a worker that is gone."""
        try:
            if worker in self.living or worker in self.spares:
                self.failure_detector.restart_timeout(worker)
                self._transport.send(worker, frame, what)
        except PeerLost as lost:
            self._lose(lost)

    def receive(self, owing: Sequence[int], what: str, most_s: float = math.inf) -> Message | None:
        """The next message of any worker; None: there is something else to see to, as one was lost,
        and others may be due now.

        Args:
            owing: of which workers something is due.
            what: what that is; errors say it.
            most_s: how long to wait for it now.

        Raises:
            DeadlineExpired: nothing came, from all that are left or from one that cannot be killed.
            PeerLost: a worker died in a job that does not survive that.
        """
        message: Message | None = None
        try:
            wait_s = min(most_s, self.failure_detector.next_look_s(owing))
            received = self._transport.receive(None, wait_s, what)
            self.failure_detector.record_message(received.source)
            self._spared.discard(received.source)
            message = received
        except PeerLost as lost:
            self._lose(lost)
        except DeadlineExpired:
            pass  # for now
        self._look_at(owing, what)
        if message is None or message.source not in self.living:
            return None  # of the dead nothing is heard, though they may wake
        return None if message.source in self._fenced else message

    def expel(self, worker: int, why: str) -> None:
        """Has a worker killed; its death is noticed as any other is.

        Raises:
            TransportError: it cannot be killed from here, or its death would end the job.
        """
        if not self._transport.fault_tolerant or not self._transport.fence(worker):
            raise TransportError(f"worker {worker} must be dropped, and cannot be from here: {why}")
        self._fenced.add(worker)
        self.notes.append(f"worker {worker} was killed: {why}")

    def drain(self) -> None:
        """Waits until everything sent to those who are left has left.

        Raises:
            DeadlineExpired: somebody does not take it.
        """
        while True:
            try:
                return self._transport.drain(self._timeout_s)
            except PeerLost as lost:
                self._lose(lost)

    def _lose(self, lost: PeerLost) -> None:
        worker = lost.rank
        waited = worker in self.spares
        if not self._transport.fault_tolerant or not (waited or worker in self.living):
            raise lost
        self._transport.ignore_rank(worker)
        self.failure_detector.remove(worker)
        self._spared.discard(worker)
        (self.spares if waited else self.living).remove(worker)
        if waited:
            self.notes.append(f"spare {worker} is gone; {len(self.spares)} are left")
            return
        self._lost.append(worker)
        left = len(self.living)
        replaced = self.count - left <= len(self.spares)
        then = (
            "a spare takes its place at the next step"
            if replaced
            else "share its part of each step from the next one on"
        )
        self.notes.append(
            f"worker {worker} is gone; {left} of {self.count} workers go on, and {then}"
        )

    def _look_at(self, owing: Sequence[int], what: str) -> None:
        """Has those killed that are hung; their deaths are noticed as any other is.

        Where all are silent, it is more likely the time that is too short, or the master's network
        that is gone: then the job ends.
        """
        due = [worker for worker in owing if worker in self.living]
        if silent := self.failure_detector.overdue(due):
            error = DeadlineExpired(
                f"rank {self._transport.rank} waited {self._timeout_s:g} s for {what}; see "
                "--timeout"
            )
            alike = self.failure_detector.overdue(due, NEARLY)
            if not self._transport.fault_tolerant or alike == self.living:
                raise error
            if len(alike) > 1 and not self._spared.issuperset(alike):
                self._fence_stuck(alike, error)
            else:
                why = f"did not answer for {self._timeout_s:g} s, the --timeout"
                self._fence(silent, why, error)
        hung = [worker for worker in self.failure_detector.hung(due) if worker not in self._fenced]
        if hung and hung != self.living and self._transport.fault_tolerant:
            limit_s = self.failure_detector.silence_limit_s
            why = (
                f"showed no sign of life for {limit_s:.3g} s, as long as many of its gradients take"
            )
            self._fence(hung, why, None)

    def _fence_stuck(self, workers: Sequence[int], error: DeadlineExpired) -> None:
        """Has those killed that do nothing by themselves; the others have their time again."""
        for worker in workers:
            if not self._transport.fence(worker, if_stuck=True):
                raise error
            self.failure_detector.restart_timeout(worker)
        self._spared.update(workers)
        self.notes.append(
            f"worker {[*workers]} did not answer for {self._timeout_s:g} s, the --timeout; who of "
            "them is stopped or stuck is killed first, as others may wait for it"
        )

    def _fence(self, workers: Sequence[int], why: str, error: DeadlineExpired | None) -> None:
        """Has workers killed; who cannot be raises `error`, where there is one."""
        for worker in workers:
            if worker in self._fenced or not self._transport.fence(worker):
                if error is not None:
                    raise error
                continue
            self._fenced.add(worker)
            self.failure_detector.restart_timeout(worker)
            self.notes.append(f"worker {worker} {why}, and was killed")
