"""Agreement on scales among the workers of a step, at the master."""

from collections.abc import Collection, Sequence
from typing import final

import torch

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.frames.commands import CommandSender
from atomo.exchange.scales import Scales, read_scales
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Kind

__all__ = ["ScaleAgreement"]


@final
class ScaleAgreement:
    """Collects the scales that workers propose, and answers with the agreed scales."""

    def __init__(self, commands: CommandSender) -> None:
        self._commands = commands
        self._scales, self._count = Scales(0), 0
        self._step = 0
        self._answered: dict[int, int] = {}  # last answered step, by worker

    def open(self, step: int, needed: int, buckets: Sequence[Bucket]) -> None:
        """Opens a step in which `needed` workers agree."""
        self._step, self._scales = step, Scales(needed)
        self._answered = {
            w: answered_step for w, answered_step in self._answered.items() if answered_step != step
        }
        self._count = sum(len(bucket.agreeing) for bucket in buckets)

    def answer(self, message: Message) -> None:
        """Records the proposal of a worker, and answers the waiting workers once enough proposed.

        Raises:
            FrameError: the frame holds no scales, or is the worker's second proposal.
        """
        proposals = read_scales(message.data, self._count)
        if self._scales.has_asked(message.source):
            raise FrameError(
                f"worker {message.source} asked for the scales of a step twice", FrameFault.TWICE
            )
        self._send_scales(self._scales.ask(message.source, proposals))

    def refuse(self, worker: int, step: int) -> None:
        """Answers a late worker with an empty frame: its gradient never counts.

        Raises:
            FrameError: the worker has its answer already, and would read this one as a command.
        """
        if self._answered.get(worker) == step:
            raise FrameError(
                f"worker {worker} asked for the scales of step {step} twice", FrameFault.TWICE
            )
        self._answered[worker] = step
        self._commands.send(worker, Kind.SCALES, [torch.empty(0, dtype=torch.float64)])

    def cancel(self, worker: int, step: int) -> bool:
        """Answers a worker that waits for scales with an empty frame: its gradient does not count.

        Returns:
            True if the codecs of the step need scales.
        """
        if self._count and self._answered.get(worker) != step:
            self.refuse(worker, step)
        return self._count > 0

    def lose(self, worker: int, survivors: Collection[int]) -> None:
        """Removes a dead worker, and answers the waiting workers if enough proposed."""
        self._send_scales(self._scales.lose(worker, survivors))

    def _send_scales(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._answered[worker] = self._step
            self._commands.send(worker, Kind.SCALES, [self._scales.section])
