"""What the master does about frames that are not what they should be.

Bytes that arrive are a stranger's. Where one message of a worker's gradient is refused, all of the
gradient is: the step goes on without it, and its worker is told as if it had come too late, upon
which its memory takes back what it sent. So one bad frame costs no more than one gradient, and no
part of that one is in the weights. Who sends nothing else is dropped.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.scale_agreement import ScaleAgreement
from atomo.communicators.parameter_server.weight_sync import WeightSync
from atomo.errors import FrameError, FrameFault
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
        """Nothing is refused yet.

        Args:
            members: whose frames these are.
            assignments: who owes what.
            agreement: tells workers what they encode with.
            weight_sync: may wait for a hash.
            most: refused frames in a row that drop a worker.
        """
        self.refused_tail, self._strikes = RefusedGradientTail(), StrikeCounter(most)
        self.notes: list[str] = []
        """What a person should know, until somebody takes it out."""
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
            error: what is wrong.
            buckets: of a gradient.
            was_in: whether the gradient was whole, and in the open step.

        Raises:
            FrameError: frames of all workers are refused: the fault is not theirs.
            TransportError: the worker must be dropped, and cannot be.
        """
        owed = self._assignments.owed.get(worker)
        if owed is None and not was_in and self._weight_sync.awaits(worker):
            self._weight_sync.reset_worker(worker)  # its answer is none: it gets the weights whole
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
            self._assignments.lose(worker)  # nobody is there to be told
        self._strike(worker, error)

    def accept(self, workers: Sequence[int]) -> None:
        """The gradients of these were whole and sound."""
        self._strikes.clear(workers)

    def lose(self, worker: int) -> None:
        """A worker is gone."""
        self.refused_tail.end(worker)
        self._strikes.clear([worker])

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Of whom frames were refused since this was last asked, and why, once for each frame."""
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
    """Tells the rest of a refused gradient from what its worker sends next.

    Messages of a worker come in the order in which they were sent. So what has the refused step, or
    one before it, is of the rest until a message has another; what cannot be read is, as long as
    the gradient can have more messages.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # messages of the gradient that a worker is sending
        self._refused: dict[int, int] = {}  # by worker, the step
        self._rest: dict[int, int] = {}  # by worker, messages that may still come

    def see(self, worker: int) -> None:
        """A message of a gradient."""
        self._seen[worker] = self._seen.get(worker, 0) + 1

    def is_first(self, worker: int) -> bool:
        """Whether no more than one message of its gradient was seen."""
        return self._seen.get(worker, 0) < 2

    def end(self, worker: int) -> None:
        """The gradient is whole, or its worker is gone: what comes next is of another."""
        for record in (self._seen, self._refused, self._rest):
            record.pop(worker, None)

    def refuse(self, worker: int, step: int, messages: int) -> None:
        """A gradient of so many messages in all is refused, by those of it that were seen."""
        self._refused[worker] = step
        self._rest[worker] = max(0, messages - self._seen.pop(worker, 0))

    def has_unreadable(self, worker: int) -> bool:
        """Whether a message that cannot be read is of the rest."""
        if not self._rest.get(worker):
            return False
        self._rest[worker] -= 1
        return True

    def has(self, worker: int, header: Header) -> bool:
        """Whether a message is of the rest."""
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
    """A worker has as many strikes as frames of it were refused since a gradient of it was whole
    and sound.
    """

    def __init__(self, most: int) -> None:
        """None yet.

        Args:
            most: at so many in a row a worker is out.
        """
        self.most = most
        self._in_a_row: Counter[int] = Counter()
        self._senders: list[tuple[int, FrameFault]] = []  # since somebody asked

    def strike(self, worker: int, fault: FrameFault) -> int:
        """A frame of a worker was refused; how many that makes in a row."""
        self._in_a_row[worker] += 1
        self._senders.append((worker, fault))
        return self._in_a_row[worker]

    def clear(self, workers: Iterable[int]) -> None:
        """Gradients of these are whole and sound."""
        for worker in workers:
            self._in_a_row.pop(worker, None)

    def has_all(self, workers: Iterable[int]) -> bool:
        """Whether each of these has strikes: then it is hardly their fault."""
        return all(worker in self._in_a_row for worker in workers)

    def take_senders(self) -> list[tuple[int, FrameFault]]:
        """Of whom frames were refused since this was last asked, and why, once for each frame."""
        senders, self._senders = self._senders, []
        return senders
