"""Members of a job with a master: living workers, spares, and the frames to and from them.

A dead worker stays out for the rest of the job: the master sends no frames to it, and drops its
unread messages. A spare takes its slot between two steps and keeps its own rank, so that a frame of
the spare cannot be mistaken for a frame of the dead worker. A worker that does not answer in time
is killed on its host. If several workers are silent, the stopped or stuck workers are killed first,
since the other silent workers may wait for them, for example in a chain. The workers agree on
nothing among themselves, and all messages are point-to-point, so that a death does not disturb
messages between living ranks.
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
# Share of the timeout: a worker silent for that long counts as silent if another is overdue.
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
        self._unreported_deaths: list[int] = []  # deaths that `take_lost` has not returned yet
        self._fenced: set[int] = set()
        self._extended: set[int] = set()  # silent among others, with a restarted timeout

    def check(self) -> None:
        """Raises TooFewWorkers if fewer than `min_workers` workers and spares are left."""
        remaining = len(self.living) + len(self.spares)
        if remaining < self._min_workers:
            dead = sorted({*self.everyone} - {*self.living} - {*self.spares})
            raise TooFewWorkers(
                f"worker {dead} of {len(self.everyone)} died, which leaves {remaining}; "
                f"--min-workers is {self._min_workers}"
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
        lost, self._unreported_deaths = self._unreported_deaths, []
        return lost

    def send(self, worker: int, frame: Bytes, label: str) -> None:
        """Starts to send a frame, except to a dead worker."""
        try:
            if worker in self.living or worker in self.spares:
                self.failure_detector.restart_timeout(worker)
                self._transport.send(worker, frame, label)
        except PeerLost as lost:
            self._remove(lost)

    def receive(
        self, pending: Sequence[int], label: str, max_wait_s: float = math.inf
    ) -> Message | None:
        """Returns the next message of any worker; None if another event may need attention, such as
        a death.

        Args:
            pending: workers that owe a frame.
            label: description of the frame, for errors.
            max_wait_s: longest wait of this call.

        Raises:
            DeadlineExpired: all living workers are silent, or one that cannot be killed is.
            PeerLost: a worker died in a job that does not survive a death.
        """
        message: Message | None = None
        try:
            wait_s = min(max_wait_s, self.failure_detector.next_check_s(pending))
            received = self._transport.receive(None, wait_s, label)
            self.failure_detector.record_message(received.source)
            self._extended.discard(received.source)
            message = received
        except PeerLost as lost:
            self._remove(lost)
        except DeadlineExpired:
            pass  # `_check_silence` decides if a worker is overdue
        self._check_silence(pending, label)
        if message is None or message.source not in self.living:
            return None  # a worker that was declared dead may resume
        return None if message.source in self._fenced else message

    def expel(self, worker: int, reason: str) -> None:
        """Kills a worker; its death is detected like any other.

        Raises:
            TransportError: the worker cannot be killed, or its death would end the job.
        """
        if not self._transport.fault_tolerant or not self._transport.fence(worker):
            raise TransportError(
                f"worker {worker} must be killed, and this host cannot kill it: {reason}"
            )
        self._fenced.add(worker)
        self.notes.append(f"worker {worker} was killed: {reason}")

    def drain(self) -> None:
        """Waits until all frames to living workers and spares have left.

        Raises:
            DeadlineExpired: a worker does not receive a frame.
        """
        while True:
            try:
                return self._transport.drain(self._timeout_s)
            except PeerLost as lost:
                self._remove(lost)

    def _remove(self, lost: PeerLost) -> None:
        worker = lost.rank
        was_spare = worker in self.spares
        if not self._transport.fault_tolerant or not (was_spare or worker in self.living):
            raise lost
        self._transport.ignore_rank(worker)
        self.failure_detector.remove(worker)
        self._extended.discard(worker)
        (self.spares if was_spare else self.living).remove(worker)
        if was_spare:
            self.notes.append(f"spare {worker} is gone; {len(self.spares)} are left")
            return
        self._unreported_deaths.append(worker)
        remaining = len(self.living)
        replaced = self.count - remaining <= len(self.spares)
        consequence = (
            "a spare takes its place at the next step"
            if replaced
            else "share its samples from the next step on"
        )
        self.notes.append(
            f"worker {worker} is gone; {remaining} of {self.count} workers continue, "
            f"and {consequence}"
        )

    def _check_silence(self, pending: Sequence[int], label: str) -> None:
        """Kills hung workers; their deaths are detected like any other.

        If all living workers are silent, the timeout is more likely too short, or the master's
        network is down: the job ends.
        """
        awaited = [worker for worker in pending if worker in self.living]
        if silent := self.failure_detector.overdue(awaited):
            error = DeadlineExpired(
                f"rank {self._transport.rank} waited {self._timeout_s:g} s for {label}; see "
                "--timeout"
            )
            nearly_silent = self.failure_detector.overdue(awaited, NEARLY)
            if not self._transport.fault_tolerant or nearly_silent == self.living:
                raise error
            if len(nearly_silent) > 1 and not self._extended.issuperset(nearly_silent):
                self._fence_stuck(nearly_silent, error)
            else:
                reason = f"did not answer for {self._timeout_s:g} s, the --timeout"
                self._fence(silent, reason, error)
        hung = [
            worker for worker in self.failure_detector.hung(awaited) if worker not in self._fenced
        ]
        if hung and hung != self.living and self._transport.fault_tolerant:
            limit_s = self.failure_detector.silence_limit_s
            reason = (
                f"showed no sign of life for {limit_s:.3g} s, as long as many of its gradients take"
            )
            self._fence(hung, reason, None)

    def _fence_stuck(self, workers: Sequence[int], error: DeadlineExpired) -> None:
        """Kills the workers that are stopped or stuck, and restarts the timeout of the others."""
        for worker in workers:
            if not self._transport.fence(worker, if_stuck=True):
                raise error
            self.failure_detector.restart_timeout(worker)
        self._extended.update(workers)
        self.notes.append(
            f"worker {[*workers]} did not answer for {self._timeout_s:g} s, the --timeout; the "
            "stopped or stuck workers are killed first, as the others may wait for them"
        )

    def _fence(self, workers: Sequence[int], reason: str, error: DeadlineExpired | None) -> None:
        """Kills workers. Raises `error`, if given, for a worker that cannot be killed."""
        for worker in workers:
            if worker in self._fenced or not self._transport.fence(worker):
                if error is not None:
                    raise error
                continue
            self._fenced.add(worker)
            self.failure_detector.restart_timeout(worker)
            self.notes.append(f"worker {worker} {reason}, and was killed")
