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
    """Collector of the scales that workers propose, which answers with the agreed scales."""

    def __init__(self, commands: CommandSender) -> None:
        self._commands = commands
        self._scales, self._count = Scales(0), 0
        self._step = 0
        self._answered: dict[int, int] = {}  # by worker, the last step that it was answered for

    def open(self, step: int, needed: int, buckets: Sequence[Bucket]) -> None:
        """Opens a step in which so many workers agree."""
        self._step, self._scales = step, Scales(needed)
        self._answered = {w: at for w, at in self._answered.items() if at != step}
        self._count = sum(len(bucket.agreeing) for bucket in buckets)

    def answer(self, message: Message) -> None:
        """Answers the workers that wait for scales once enough have asked.

        Raises:
            FrameError: the frame is no query, or the second one of this worker.
        """
        asked = read_scales(message.data, self._count)
        if self._scales.has_asked(message.source):
            raise FrameError(
                f"worker {message.source} asked for the scales of a step twice", FrameFault.TWICE
            )
        self._tell(self._scales.ask(message.source, asked))

    def refuse(self, worker: int, step: int) -> None:
        """Answers a late worker with no scales: its gradient never counts.

        Raises:
            FrameError: the worker was answered already, and would take this for a command.
        """
        if self._answered.get(worker) == step:
            raise FrameError(
                f"worker {worker} asked for the scales of step {step} twice", FrameFault.TWICE
            )
        self._answered[worker] = step
        self._commands.send(worker, Kind.SCALES, [torch.empty(0, dtype=torch.float64)])

    def cancel(self, worker: int, step: int) -> bool:
        """Answers with a refusal if the worker waits for scales: its gradient does not count.

        Returns:
            True if the codecs of the step need scales.
        """
        if self._count and self._answered.get(worker) != step:
            self.refuse(worker, step)
        return self._count > 0

    def lose(self, worker: int, left: Collection[int]) -> None:
        """Removes a dead worker, and answers the others if enough have asked."""
        self._tell(self._scales.lose(worker, left))

    def _tell(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._answered[worker] = self._step
            self._commands.send(worker, Kind.SCALES, [self._scales.section])
