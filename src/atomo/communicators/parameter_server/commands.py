"""What the master tells the workers."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.messages import RAW, members_frame
from atomo.communicators.parameter_server.weight_sync import WeightSync
from atomo.communicators.sharing import part
from atomo.wire import Bytes, Header, Kind, pack

__all__ = ["CommandSender"]


@final
class CommandSender:
    """Frames to workers, with the verdict on what each sent last, and the news of who is left.

    Those who share a step are told before its first gradient, and stay the same until the next: all
    who compute it divide its samples alike, however late they begin.
    """

    def __init__(
        self, members: Members, assignments: Assignments, weight_sync: WeightSync, images: int = 0
    ) -> None:
        """Nobody was told anything yet.

        Args:
            members: who may be told something.
            assignments: who owes what.
            weight_sync: how workers get the weights.
            images: of each step.
        """
        self._members, self._assignments, self._weight_sync = members, assignments, weight_sync
        self._step, self._images = 0, images
        self._sharing = tuple(members.living)
        self._knows = dict[int, tuple[int, ...]]()  # what else than all ranks each was told

    def open(self, step: int) -> None:
        """Whoever is there now shares the samples of `step`."""
        self._step, self._sharing = step, tuple(self._members.living)

    def compute(self, workers: Sequence[int]) -> None:
        """These compute the gradient of the open step."""
        self._assignments.give({worker: self._part(worker) for worker in workers}, self._step)
        for worker in workers:
            self._members.failure_detector.give(worker)
        self._order(workers)

    def _part(self, worker: int) -> int:
        """How many of the images of the open step are a worker's."""
        return len(part(self._images, self._sharing.index(worker), len(self._sharing)))

    def repeat(self, worker: int) -> None:
        """To a worker that could not follow its order: it computes the gradient of the open step,
        of which it gets all that it needs.
        """
        self._weight_sync.lose(worker)
        self._assignments.move(worker, self._step, self._part(worker))
        self._members.failure_detector.give(worker)
        self._order([worker])

    def cancel(self, worker: int) -> None:
        """To a worker that could not follow its order, for a step that is closed: nothing."""
        self._weight_sync.lose(worker)
        self._assignments.cancel(worker)

    def _order(self, workers: Sequence[int]) -> None:
        for worker in workers:
            if self._knows.get(worker, self._members.everyone) != self._sharing:
                self._knows[worker] = self._sharing
                frame = members_frame(self._step, self._sharing)
                self._members.send(worker, frame, "who is left")
        verdicts = {worker: self._assignments.verdict(worker) for worker in workers}
        for worker, frame in self._weight_sync.commands(verdicts):
            self._members.send(worker, frame, f"the weights of step {self._step}")

    def send(self, worker: int, kind: Kind, sections: Sequence[Tensor] = ()) -> None:
        """An order of a kind."""
        frame = pack(self.header(worker, kind), sections, RAW)
        self._members.send(worker, frame, f"an order to {kind.name.lower()}")

    def header(self, worker: int, kind: Kind) -> Header:
        """Of an order that is sent by itself; it has the verdict."""
        return Header(kind, self._step, worker, flags=self._assignments.verdict(worker))

    def send_all(self, worker: int, frames: Sequence[Bytes], what: str) -> None:
        """Frames that are made already, in order."""
        for frame in frames:
            self._members.send(worker, frame, what)
