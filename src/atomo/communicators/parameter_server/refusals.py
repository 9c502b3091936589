"""What the master does about frames that are not what they should be.

Bytes that arrive are a stranger's. Where one message of a worker's gradient is refused, all of the
gradient is: the step goes on without it, and its worker is told as if it had come too late, upon
which its memory takes back what it sent. So one bad frame costs no more than one gradient, and no
part of that one is in the weights. Who sends nothing else is dropped.
"""

from collections.abc import Sequence
from typing import final

from atomo.communicators.parameter_server.agreement import Agreement
from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.down import Down
from atomo.communicators.parameter_server.leftovers import Leftovers
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.strikes import Strikes
from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket

__all__ = ["Refusals"]


@final
class Refusals:
    """Refuses gradients, and drops workers whose frames are refused again and again."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        agreement: Agreement,
        down: Down,
        most: int,
    ) -> None:
        """Nothing is refused yet.

        Args:
            members: whose frames these are.
            assignments: who owes what.
            agreement: tells workers what they encode with.
            down: the way down, which may wait for a hash.
            most: refused frames in a row that drop a worker.
        """
        self.leftovers, self._strikes = Leftovers(), Strikes(most)
        self.notes: list[str] = []
        """What a person should know, until somebody takes it out."""
        self._members, self._assignments = members, assignments
        self._agreement, self._down = agreement, down

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
        if owed is None and not was_in and self._down.awaits(worker):
            self._down.lose(worker)  # its answer is none: it gets the weights whole
        if owed is not None:
            if self.leftovers.is_first(worker):
                self._down.lose(worker)  # what cannot be read may have been a BROKEN, or a hash
            messages = len(buckets) + 1 + self._agreement.excuse(worker, owed)
            self.leftovers.refuse(worker, owed, messages)
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
        self.leftovers.end(worker)
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
