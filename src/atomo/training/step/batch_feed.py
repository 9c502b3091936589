"""Batches for a device: made there where the samples fit, else on the host while it computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import torch
from jaxtyping import Int64
from torch import Tensor

from atomo.core.devices import to_device
from atomo.workloads import Batch, Samples

__all__ = ["Feed", "Order"]

Order = tuple[Int64[Tensor, " b"], int]
"""Indices of samples, and the seed of their augmentation."""


@final
class Feed:
    """The batches of one worker.

    On the CPU a batch is made when it is asked for: nothing is won where the same cores compute.
    For a device one is made ahead, in a thread, and goes there through pinned memory, unless the
    samples lie on it already.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._device = device
        self._samples = samples if device.type == "cpu" else samples.on(device)
        self._there = self._samples is not samples
        self._maker = ThreadPoolExecutor(1, "feed")  # starts with the first batch that is ahead
        self._coming: tuple[Order, Future[Batch]] | None = None

    def batch(self, order: Order, following: Callable[[], Order | None]) -> Batch:
        """Returns a batch on the device.

        Args:
            order: what it is.
            following: says what will be asked for next; None: nobody knows.
        """
        if self._device.type == "cpu":
            return self._made(order)
        if self._there:
            indices, seed = order
            return self._samples.batch(to_device(indices, self._device), seed)
        coming, self._coming = self._coming, None
        # Another one than was foreseen: workers were lost, and this one has more samples.
        if coming is None or not same(coming[0], order):
            coming = order, self._maker.submit(self._made, order)
        found = coming[1].result()
        if (ahead := following()) is not None:
            self._coming = ahead, self._maker.submit(self._made, ahead)
        return found.to(self._device)

    def close(self) -> None:
        """Ends the feed after the last batch."""
        self._maker.shutdown(cancel_futures=True)

    def _made(self, order: Order) -> Batch:
        return self._samples.batch(*order)


def same(one: Order, other: Order) -> bool:
    """Returns True if two orders are for the same batch."""
    return one[1] == other[1] and one[0].equal(other[0])
