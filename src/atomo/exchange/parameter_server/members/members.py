"""Members of a job with a master: living workers, spares, and the frames to and from them.

A dead worker stays out for the rest of the job: the master sends nothing to it, and drops its
unread messages. A spare takes its slot between two steps with its own rank, so that a frame of the
spare cannot be taken for a frame of the dead worker. A worker that does not answer in time is
killed on its host. If several are silent, the stopped or stuck ones are killed first, since the
others may wait for them, for example in a chain. The workers agree on nothing, and all messages are
point-to-point, so that a death does not disturb messages between living ranks.
"""

import math
from collections.abc import Sequence
from typing import Final, final

from atomo.errors import DeadlineExpired, PeerLost, TooFewWorkers, TransportError
from atomo.exchange.parameter_server.members.failure_detector import FailureDetector
from atomo.transports import Message, Transport
from atomo.wire import Bytes

__all__ = ["Members"]

MASTER: Final = 0
# Share of the timeout: a worker silent for that long counts as silent beside an overdue one.
NEARLY: Final = 0.9


@final
class Members:
    """Workers in steps, and spares that wait."""

    def __init__(
        self, transport: Transport, min_workers: int, timeout_s: float, spares: int = 0
    ) -> None:
        """Starts with all workers of a job except the spares.

        Args:
            transport: to the workers.
            min_workers: smallest number of living workers, spares included.
            timeout_s: longest wait for a worker.
            spares: number of ranks, the last ones, that wait.
        """
        self.everyone = tuple(range(1, transport.size))
        """All ranks but the master."""
        self.count = len(self.everyone) - spares
        """Number of workers in a step if none is dead."""
        self.living = [*self.everyone[: self.count]]
        """Workers in steps, in rank order."""
        self.spares = [*self.everyone[self.count :]]
        """Ranks that wait for a slot."""
        self.notes: list[str] = []
        """Notes for the user; the reader clears them."""
        self.failure_detector = FailureDetector(timeout_s, transport.cpu_time_s)
        """Detector of hung workers."""
        self._transport, self._min_workers, self._timeout_s = transport, min_workers, timeout_s
        self._lost: list[int] = []  # deaths that `take_lost` has not returned yet
        self._fenced: set[int] = set()
        self._spared: set[int] = set()  # silent beside others, and given the whole time again

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
        """Fills free slots with spares before `step` opens, and returns their ranks."""
        free = self.count - len(self.living)
        joining, self.spares[:] = self.spares[:free], self.spares[free:]
        self.living[:] = sorted(self.living + joining)
        self.notes += [
            f"worker {worker}, a spare, takes part from step {step} on" for worker in joining
        ]
        return joining

    def take_lost(self) -> list[int]:
        """Returns the workers that died since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def send(self, worker: int, frame: Bytes, what: str) -> None:
        """Starts to send a frame; a dead worker gets none."""
        try:
            if worker in self.living or worker in self.spares:
                self.failure_detector.restart_timeout(worker)
                self._transport.send(worker, frame, what)
        except PeerLost as lost:
            self._lose(lost)

    def receive(self, owing: Sequence[int], what: str, most_s: float = math.inf) -> Message | None:
        """Returns the next message of any worker; None if another event may need attention, such as
        a death.

        Args:
            owing: workers that owe a frame.
            what: description of the frame, for errors.
            most_s: longest wait of this call.

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
            pass  # not yet overdue; the look below decides
        self._look_at(owing, what)
        if message is None or message.source not in self.living:
            return None  # a worker taken for dead may wake
        return None if message.source in self._fenced else message

    def expel(self, worker: int, why: str) -> None:
        """Kills a worker; its death is noticed like any other.

        Raises:
            TransportError: it cannot be killed from here, or its death would end the job.
        """
        if not self._transport.fault_tolerant or not self._transport.fence(worker):
            raise TransportError(f"worker {worker} must be dropped, and cannot be from here: {why}")
        self._fenced.add(worker)
        self.notes.append(f"worker {worker} was killed: {why}")

    def drain(self) -> None:
        """Waits until all frames to living workers and spares have left.

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
        """Kills hung workers; their deaths are noticed like any other.

        If all are silent, the timeout is more likely too short, or the master's network down: then
        the job ends.
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
        """Kills the workers that are stopped or stuck; the others get the whole time again."""
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
        """Kills workers. Raises `error`, if given, for a worker that cannot be killed."""
        for worker in workers:
            if worker in self._fenced or not self._transport.fence(worker):
                if error is not None:
                    raise error
                continue
            self._fenced.add(worker)
            self.failure_detector.restart_timeout(worker)
            self.notes.append(f"worker {worker} {why}, and was killed")
