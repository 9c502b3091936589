"""The master's part where the workers of a step agree on scales before they encode."""

from collections.abc import Collection, Sequence
from typing import final

import torch

from atomo.communicators.parameter_server.orders import Orders
from atomo.communicators.scales import Scales, read_scales
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Kind

__all__ = ["Agreement"]


@final
class Agreement:
    """Takes in what workers ask for, and tells them what was agreed on."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._scales, self._count = Scales(0), 0

    def open(self, needed: int, buckets: Sequence[Bucket]) -> None:
        """A step is open, in whose buckets so many workers agree."""
        self._scales = Scales(needed)
        self._count = sum(len(bucket.agreeing) for bucket in buckets)

    def answer(self, message: Message) -> None:
        """Answers who waits for scales, once enough have asked."""
        asked = read_scales(message.data, self._count)
        self._tell(self._scales.ask(message.source, asked))

    def refuse(self, worker: int) -> None:
        """Who is late gets none: what it encodes never counts."""
        self._orders.send(worker, Kind.SCALES, [torch.empty(0, dtype=torch.float64)])

    def lose(self, worker: int, left: Collection[int]) -> None:
        """A worker is gone, and nobody waits for what it would ask for."""
        self._tell(self._scales.lose(worker, left))

    def _tell(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self._orders.send(worker, Kind.SCALES, [self._scales.section])
