"""Refusal of malformed frames, and strikes of their senders.

The master trusts no bytes that arrive. If one message of a gradient is refused, the whole gradient
is refused: the step continues without it, and the worker gets the LATE flag, upon which its memory
takes the gradient back. One malformed frame costs at most one gradient, and no part of that
gradient is in the weights. A worker with too many refused frames in a row is killed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.scale_agreement import ScaleAgreement
from atomo.exchange.parameter_server.weight_sync import WeightSync
from atomo.fusion import Bucket
from atomo.wire import Header, Kind

__all__ = ["Refusals", "RefusedGradientTail"]

GRADIENT_KINDS = (Kind.GRADIENT, Kind.SCALES, Kind.REPORT)


@final
class Refusals:
    """Refuser of gradients, which kills workers with too many refused frames in a row."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        agreement: ScaleAgreement,
        weight_sync: WeightSync,
        max_strikes: int,
    ) -> None:
        """Starts without refused frames.

        Args:
            members: senders of the frames.
            assignments: of steps to workers.
            agreement: answers workers that wait for scales.
            weight_sync: may wait for a hash.
            max_strikes: refused frames in a row after which a worker is killed.
        """
        self.refused_tail, self._strikes = RefusedGradientTail(), StrikeCounter(max_strikes)
        self.notes: list[str] = []
        """Notes for the user; the reader clears them."""
        self._members, self._assignments = members, assignments
        self._agreement, self._weight_sync = agreement, weight_sync

    def refuse(
        self,
        worker: int,
        error: FrameError,
        buckets: Sequence[Bucket],
        *,
        was_complete: bool = False,
    ) -> None:
        """Refuses the gradient that a worker is sending, or has sent to the open step.

        Args:
            worker: its rank.
            error: the fault.
            buckets: of a gradient.
            was_complete: True if the gradient was complete in the open step.

        Raises:
            FrameError: frames of all workers are refused, so that the fault is not a worker's.
            TransportError: the worker must be killed, and cannot be.
        """
        step = self._assignments.outstanding.get(worker)
        if step is None and not was_complete and self._weight_sync.awaits(worker):
            self._weight_sync.reset_worker(worker)  # without a valid answer it gets all weights
        if step is not None:
            if self.refused_tail.is_first(worker):
                self._weight_sync.reset_worker(
                    worker
                )  # an unreadable frame may have been a BROKEN or a HASH
            messages = len(buckets) + 1 + self._agreement.cancel(worker, step)
            self.refused_tail.refuse(worker, step, messages)
        if step is not None or was_complete:
            self._assignments.refuse(worker)
        if worker not in self._members.living:
            self._assignments.lose(worker)  # a dead worker gets no verdict
        self._strike(worker, error)

    def accept(self, workers: Sequence[int]) -> None:
        """Clears the strikes of workers with a valid gradient."""
        self._strikes.clear(workers)

    def lose(self, worker: int) -> None:
        """Removes a dead worker."""
        self.refused_tail.end(worker)
        self._strikes.clear([worker])

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Returns sender and fault of each frame refused since the last call."""
        return self._strikes.take_senders()

    def _strike(self, worker: int, error: FrameError) -> None:
        count, max_strikes = self._strikes.strike(worker, error.fault), self._strikes.max_strikes
        self.notes.append(f"a frame of worker {worker} is refused, {count} in a row: {error}")
        if count < max_strikes:
            return
        if self._strikes.has_all(self._members.living):
            raise FrameError(
                f"frames of all workers that are left ({self._members.living}) are refused; "
                f"the last is of worker {worker}: {error}"
            ) from error
        self._members.expel(worker, f"{count} of its frames in a row were refused (--max-strikes)")


@final
class RefusedGradientTail:
    """Detector of messages that belong to a refused gradient and are still under way.

    Messages of a worker arrive in the order of sending. So messages of the refused step, or of an
    earlier one, belong to the tail until a message of another step arrives. An unreadable message
    belongs to the tail as long as the gradient can have further messages.
    """

    def __init__(self) -> None:
        self._received: dict[int, int] = {}  # messages of the gradient that a worker is sending
        self._refused: dict[int, int] = {}  # step by worker
        self._remaining: dict[int, int] = {}  # upper bound of messages still under way, by worker

    def count(self, worker: int) -> None:
        """Counts a message of a gradient."""
        self._received[worker] = self._received.get(worker, 0) + 1

    def is_first(self, worker: int) -> bool:
        """True if at most one message of the current gradient arrived."""
        return self._received.get(worker, 0) < 2

    def end(self, worker: int) -> None:
        """Ends the gradient of a worker: the next message belongs to another."""
        for record in (self._received, self._refused, self._remaining):
            record.pop(worker, None)

    def refuse(self, worker: int, step: int, messages: int) -> None:
        """Starts the tail of a refused gradient of `messages` messages, some of which arrived."""
        self._refused[worker] = step
        self._remaining[worker] = max(0, messages - self._received.pop(worker, 0))

    def contains_unreadable(self, worker: int) -> bool:
        """True if an unreadable message belongs to the tail."""
        if not self._remaining.get(worker):
            return False
        self._remaining[worker] -= 1
        return True

    def contains(self, worker: int, header: Header) -> bool:
        """True if a message belongs to the tail."""
        step = self._refused.get(worker)
        if step is None:
            return False
        is_tail = header.kind in GRADIENT_KINDS and header.step <= step
        if not is_tail or (header.kind is Kind.REPORT and header.step == step):
            self.end(worker)
        elif self._remaining[worker]:
            self._remaining[worker] -= 1
        return is_tail


@final
class StrikeCounter:
    """Counter of strikes: refused frames of a worker since its last valid gradient."""

    def __init__(self, max_strikes: int) -> None:
        """Starts without strikes.

        Args:
            max_strikes: refused frames in a row after which a worker is killed.
        """
        self.max_strikes = max_strikes
        self._in_a_row: Counter[int] = Counter()
        self._senders: list[tuple[int, FrameFault]] = []  # since the last call

    def strike(self, worker: int, fault: FrameFault) -> int:
        """Counts a refused frame, and returns the strikes of its sender."""
        self._in_a_row[worker] += 1
        self._senders.append((worker, fault))
        return self._in_a_row[worker]

    def clear(self, workers: Iterable[int]) -> None:
        """Clears the strikes of workers."""
        for worker in workers:
            self._in_a_row.pop(worker, None)

    def has_all(self, workers: Iterable[int]) -> bool:
        """True if all these workers have strikes: the fault is then hardly a worker's."""
        return all(worker in self._in_a_row for worker in workers)

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Returns sender and fault of each frame refused since the last call."""
        senders, self._senders = self._senders, []
        return senders
