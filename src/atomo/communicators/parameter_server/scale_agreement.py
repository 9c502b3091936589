"""The master's part where the workers of a step agree on scales before they encode."""

from collections.abc import Collection, Sequence
from typing import final

import torch

from atomo.communicators.parameter_server.commands import CommandSender
from atomo.communicators.scales import Scales, read_scales
from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Kind

__all__ = ["ScaleAgreement"]


@final
class ScaleAgreement:
    """Takes in what workers ask for, and tells them what was agreed on."""

    def __init__(self, commands: CommandSender) -> None:
        self._commands = commands
        self._scales, self._count = Scales(0), 0
        self._step = 0
        self._answered: dict[int, int] = {}  # by worker, the last step that it was answered for

    def open(self, step: int, needed: int, buckets: Sequence[Bucket]) -> None:
        """A step is open, in whose buckets so many workers agree."""
        self._step, self._scales = step, Scales(needed)
        self._answered = {w: at for w, at in self._answered.items() if at != step}
        self._count = sum(len(bucket.agreeing) for bucket in buckets)

    def answer(self, message: Message) -> None:
        """Answers who waits for scales, once enough have asked.

        Raises:
            FrameError: it is no question, or the second of this worker.
        """
        asked = read_scales(message.data, self._count)
        if self._scales.has_asked(message.source):
            raise FrameError(
                f"worker {message.source} asked for the scales of a step twice", FrameFault.TWICE
            )
        self._tell(self._scales.ask(message.source, asked))

    def refuse(self, worker: int, step: int) -> None:
        """Who is late gets none: what it encodes never counts.

        Raises:
            FrameError: it was answered already, and would take this for an order.
        """
        if self._answered.get(worker) == step:
            raise FrameError(
                f"worker {worker} asked for the scales of step {step} twice", FrameFault.TWICE
            )
        self._answered[worker] = step
        self._commands.send(worker, Kind.SCALES, [torch.empty(0, dtype=torch.float64)])

    def cancel(self, worker: int, step: int) -> bool:
        """A worker waits for no more than a refusal: its gradient of this step does not count.

        Returns:
            Whether gradients ask for scales at all.
        """
        if self._count and self._answered.get(worker) != step:
            self.refuse(worker, step)
        return self._count > 0

    def lose(self, worker: int, left: Collection[int]) -> None:
        """A worker is gone, and nobody waits for what it would ask for."""
        self._tell(self._scales.lose(worker, left))

    def _tell(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._answered[worker] = self._step
            self._commands.send(worker, Kind.SCALES, [self._scales.section])
