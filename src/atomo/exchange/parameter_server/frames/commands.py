"""Commands of the master to workers."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from atomo.exchange.parameter_server.frames.messages import RAW, members_frame
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.weight_sync import WeightSync
from atomo.exchange.sharing import part
from atomo.wire import Bytes, Header, Kind, pack

__all__ = ["CommandSender"]


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

    def open(self, step: int, local_steps: int = 1) -> None:
        """Opens a step, or a round of local steps: the living workers share its samples."""
        self._step, self._local_steps = step, local_steps
        self._sharing = tuple(self._members.living)

    def compute(self, workers: Sequence[int]) -> None:
        """Commands workers to compute the gradient of the open step."""
        self._assignments.give({worker: self._part(worker) for worker in workers}, self._step)
        for worker in workers:
            self._members.failure_detector.start_gradient(worker)
        self._send_commands(workers)

    def _part(self, worker: int) -> int:
        """Returns the number of a worker's images in the open step."""
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
