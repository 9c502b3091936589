"""Commands of the master to workers."""

from collections.abc import Callable, Sequence
from typing import final

from torch import Tensor

from atomo.exchange.parameter_server.frames.messages import (
    RAW,
    Pace,
    members_frame,
    pace_frame,
)
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.weight_sync import WeightSync
from atomo.exchange.sharing import part
from atomo.wire import Bytes, Header, Kind, pack

__all__ = ["CommandSender", "Deal"]

Deal = Callable[[Sequence[int]], tuple[Pace, Sequence[int]]]
"""Returns the pace of a round for these workers, and the samples of each."""


@final
class CommandSender:
    """Sender of commands, with the verdict on each worker's last gradient and the current members.

    The members are sent before the first command of a step and stay the same until the next step:
    all workers of a step divide its samples in the same way, even if they start late.
    """

    def __init__(
        self, members: Members, assignments: Assignments, weight_sync: WeightSync, images: int = 0
    ) -> None:
        """Starts without a step.

        Args:
            members: recipients.
            assignments: of steps to workers.
            weight_sync: makes the frames with the weights.
            images: samples of each step.
        """
        self._members, self._assignments, self._weight_sync = members, assignments, weight_sync
        self._step, self._images, self._local_steps = 0, images, 1
        self._sharing = tuple(members.living)
        self._knows = dict[
            int, tuple[int, ...]
        ]()  # last members sent, by worker; absent: all ranks
        self._dealt: Sequence[int] = ()  # samples by worker of `_sharing`; empty: equal parts
        self._paces: dict[int, Bytes] = {}  # PACE frames that a worker may lack, by round
        self._told: dict[int, int] = {}  # the last round whose pace a worker has

    def open(self, step: int, local_steps: int = 1, deal: Deal | None = None) -> None:
        """Opens a step, or a round of local steps: the living workers share its samples.

        Args:
            step: the number of the step or of the round.
            local_steps: steps of the round.
            deal: divides the round by the speeds of workers; None: into equal parts.
        """
        self._step, self._local_steps = step, local_steps
        self._sharing = tuple(self._members.living)
        if deal is not None:
            pace, self._dealt = deal(self._sharing)
            # A round that begins again has other workers.
            self._told = {w: min(told, step - 1) for w, told in self._told.items()}
            oldest = min((self._told.get(w, step - 1) for w in self._sharing), default=step)
            self._paces = {n: frame for n, frame in self._paces.items() if n > oldest}
            self._paces[step] = pace_frame(step, pace)

    def compute(self, workers: Sequence[int]) -> None:
        """Commands workers to compute the gradient of the open step."""
        self._assignments.give({worker: self._part(worker) for worker in workers}, self._step)
        for worker in workers:
            self._members.failure_detector.start_gradient(worker)
        self._send_commands(workers)

    def _part(self, worker: int) -> int:
        """Returns the number of a worker's images in the open step."""
        if self._dealt:
            return self._dealt[self._sharing.index(worker)]
        own = part(self._images, self._sharing.index(worker), len(self._sharing))
        return self._local_steps * len(own)

    def repeat(self, worker: int) -> None:
        """Repeats the command of the open step, with all frames that it needs, to a worker that a
        broken chain did not reach.
        """
        self._weight_sync.reset_worker(worker)
        self._assignments.move(worker, self._step, self._part(worker))
        self._members.failure_detector.start_gradient(worker)
        self._send_commands([worker])

    def cancel(self, worker: int) -> None:
        """Cancels the closed step of a worker that a broken chain did not reach."""
        self._weight_sync.reset_worker(worker)
        self._assignments.cancel(worker)

    def _send_commands(self, workers: Sequence[int]) -> None:
        for worker in workers:
            if self._knows.get(worker, self._members.everyone) != self._sharing:
                self._knows[worker] = self._sharing
                frame = members_frame(self._step, self._sharing)
                self._members.send(worker, frame, "the members")
            for number, frame in self._paces.items():
                # One that joined lacks no earlier round: it starts at the weights of this one.
                if number > self._told.get(worker, self._step - 1):
                    self._members.send(worker, frame, f"the pace of round {number}")
            self._told[worker] = self._step
        verdicts = {worker: self._assignments.verdict(worker) for worker in workers}
        for worker, frame in self._weight_sync.commands(verdicts):
            self._members.send(worker, frame, f"the weights of step {self._step}")

    def send(self, worker: int, kind: Kind, sections: Sequence[Tensor] = ()) -> None:
        """Sends a command of a kind."""
        frame = pack(self.header(worker, kind), sections, RAW)
        self._members.send(worker, frame, f"a command to {kind.name.lower()}")

    def header(self, worker: int, kind: Kind) -> Header:
        """Returns the header of a command, with the verdict on the worker's last gradient."""
        return Header(kind, self._step, worker, flags=self._assignments.verdict(worker))

    def send_all(self, worker: int, frames: Sequence[Bytes], label: str) -> None:
        """Sends finished frames in order."""
        for frame in frames:
            self._members.send(worker, frame, label)
