"""Batches for a device, made there if the samples fit, else on the host during the last pass."""

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

    On the CPU a batch is made on request: the same cores compute the passes, so that a thread would
    gain nothing. For a device, a thread makes the next batch ahead, and pinned memory moves it to
    the device, unless the device has the samples already.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._device = device
        self._samples = samples if device.type == "cpu" else samples.on(device)
        self._on_device = self._samples is not samples
        self._maker = ThreadPoolExecutor(1, "feed")  # its thread starts with the first batch
        self._ahead: tuple[Order, Future[Batch]] | None = None

    def batch(self, order: Order, following: Callable[[], Order | None]) -> Batch:
        """Returns a batch on the device.

        Args:
            order: of this batch.
            following: returns the order of the next batch, or None if it is unknown.
        """
        if self._device.type == "cpu":
            return self._made(order)
        if self._on_device:
            indices, seed = order
            return self._samples.batch(to_device(indices, self._device), seed)
        ahead, self._ahead = self._ahead, None
        # The order changes if workers were lost and this worker has more samples.
        if ahead is None or not same(ahead[0], order):
            ahead = order, self._maker.submit(self._made, order)
        made = ahead[1].result()
        if (upcoming := following()) is not None:
            self._ahead = upcoming, self._maker.submit(self._made, upcoming)
        return made.to(self._device)

    def close(self) -> None:
        """Ends the feed after the last batch."""
        self._maker.shutdown(cancel_futures=True)

    def _made(self, order: Order) -> Batch:
        return self._samples.batch(*order)


def same(first: Order, second: Order) -> bool:
    """Returns True if two orders are for the same batch."""
    return first[1] == second[1] and first[0].equal(second[0])
