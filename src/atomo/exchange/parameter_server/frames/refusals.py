"""Refusal of malformed frames, and strikes of their senders.

The master trusts no bytes that arrive. If one message of a gradient is refused, the whole gradient
is: the step goes on without it, and the worker is told as if the gradient were late, so that its
memory takes back what was sent. One bad frame costs at most one gradient, and no part of that
gradient is in the weights. A worker whose frames are refused again and again is dropped.
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
    """Refuses gradients, and drops workers whose frames are refused again and again."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        agreement: ScaleAgreement,
        weight_sync: WeightSync,
        most: int,
    ) -> None:
        """Starts without refused frames.

        Args:
            members: senders of the frames.
            assignments: of steps to workers.
            agreement: answers workers that wait for scales.
            weight_sync: may wait for a hash.
            most: refused frames in a row after which a worker is dropped.
        """
        self.refused_tail, self._strikes = RefusedGradientTail(), StrikeCounter(most)
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
        was_in: bool = False,
    ) -> None:
        """Refuses the gradient that a worker is sending, or has sent to the open step.

        Args:
            worker: its rank.
            error: the fault.
            buckets: of a gradient.
            was_in: True if the gradient was complete in the open step.

        Raises:
            FrameError: frames of all workers are refused, so the fault is elsewhere.
            TransportError: the worker must be dropped, and cannot be.
        """
        owed = self._assignments.owed.get(worker)
        if owed is None and not was_in and self._weight_sync.awaits(worker):
            self._weight_sync.reset_worker(worker)  # no valid answer: it gets the weights whole
        if owed is not None:
            if self.refused_tail.is_first(worker):
                self._weight_sync.reset_worker(
                    worker
                )  # what cannot be read may have been a BROKEN, or a hash
            messages = len(buckets) + 1 + self._agreement.cancel(worker, owed)
            self.refused_tail.refuse(worker, owed, messages)
        if owed is not None or was_in:
            self._assignments.refuse(worker)
        if worker not in self._members.living:
            self._assignments.lose(worker)  # a dead worker cannot be told
        self._strike(worker, error)

    def accept(self, workers: Sequence[int]) -> None:
        """Clears the strikes of workers whose gradients were sound."""
        self._strikes.clear(workers)

    def lose(self, worker: int) -> None:
        """Removes a dead worker."""
        self.refused_tail.end(worker)
        self._strikes.clear([worker])

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Returns the senders of frames refused since the last call with the faults, once for each
        frame.
        """
        return self._strikes.take_senders()

    def _strike(self, worker: int, error: FrameError) -> None:
        count, most = self._strikes.strike(worker, error.fault), self._strikes.most
        self.notes.append(f"a frame of worker {worker} is refused, {count} in a row: {error}")
        if count < most:
            return
        if self._strikes.has_all(self._members.living):
            raise FrameError(
                f"frames of all workers that are left ({self._members.living}) are refused; "
                f"at last one of worker {worker}: {error}"
            ) from error
        self._members.expel(worker, f"{count} of its frames in a row were refused (--max-strikes)")


@final
class RefusedGradientTail:
    """Messages of a refused gradient that are still under way.

    Messages of a worker arrive in the order of sending. So messages of the refused step, or of an
    earlier one, belong to the tail until a message of another step arrives. An unreadable message
    belongs to the tail as long as the gradient can have further messages.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # messages of the gradient that a worker is sending
        self._refused: dict[int, int] = {}  # step by worker
        self._rest: dict[int, int] = {}  # messages that may still come, by worker

    def see(self, worker: int) -> None:
        """Counts a message of a gradient."""
        self._seen[worker] = self._seen.get(worker, 0) + 1

    def is_first(self, worker: int) -> bool:
        """True if at most one message of the current gradient arrived."""
        return self._seen.get(worker, 0) < 2

    def end(self, worker: int) -> None:
        """Ends the gradient of a worker: the next message belongs to another."""
        for record in (self._seen, self._refused, self._rest):
            record.pop(worker, None)

    def refuse(self, worker: int, step: int, messages: int) -> None:
        """Refuses a gradient of so many messages in all, some of which have arrived."""
        self._refused[worker] = step
        self._rest[worker] = max(0, messages - self._seen.pop(worker, 0))

    def has_unreadable(self, worker: int) -> bool:
        """True if an unreadable message belongs to the tail."""
        if not self._rest.get(worker):
            return False
        self._rest[worker] -= 1
        return True

    def has(self, worker: int, header: Header) -> bool:
        """True if a message belongs to the tail."""
        step = self._refused.get(worker)
        if step is None:
            return False
        of_it = header.kind in GRADIENT_KINDS and header.step <= step
        if not of_it or (header.kind is Kind.REPORT and header.step == step):
            self.end(worker)
        elif self._rest[worker]:
            self._rest[worker] -= 1
        return of_it


@final
class StrikeCounter:
    """Counter of strikes: refused frames of a worker since its last sound gradient."""

    def __init__(self, most: int) -> None:
        """Starts without strikes.

        Args:
            most: refused frames in a row after which a worker is dropped.
        """
        self.most = most
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
        """True if all these workers have strikes: then the fault is hardly theirs."""
        return all(worker in self._in_a_row for worker in workers)

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Returns the senders of frames refused since the last call with the faults, once for each
        frame.
        """
        senders, self._senders = self._senders, []
        return senders
