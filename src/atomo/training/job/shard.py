"""Division of the training images over steps and workers.

Every epoch is a new permutation of the training images, a pure function of the seed and the epoch.
A step takes the next workers x batch images, and worker w the w-th chunk: no image goes to two
workers, and a step of W workers has the images of a single process with a batch W times as large.
The last images of an epoch, fewer than a step takes, are dropped; the next epoch has another order,
so that no image is dropped in all epochs.

The images of a step stay the same if workers are lost. The remaining W workers divide the n images:
the i-th in rank order has those from n i / W to n (i + 1) / W, rounded down.
"""

from typing import final

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from atomo.core.randomness import derive
from atomo.errors import ConfigError
from atomo.exchange.sharing import part

__all__ = ["Shard", "steps_per_epoch"]


def steps_per_epoch(images: int, workers: int, batch_size: int) -> int:
    """Returns the number of complete steps in one pass over the images.

    Raises:
        ConfigError: there are not enough images for one step.
    """
    steps = images // (workers * batch_size)
    if not steps:
        raise ConfigError(
            f"--batch-size (times --batches-per-step) {batch_size} on {workers} workers takes "
            f"{workers * batch_size} images a step, and the training set has {images}"
        )
    return steps


@final
class Shard:
    """One worker's part of the training images."""

    def __init__(self, images: int, workers: int, index: int, batch_size: int, seed: int) -> None:
        self.steps_per_epoch = steps_per_epoch(images, workers, batch_size)
        self._images, self._of_step, self._seed = images, workers * batch_size, seed
        self._index, self._among = index, workers
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def epoch(self, step: int) -> int:
        """Returns the epoch of a step; steps count from 1, epochs from 0."""
        return (step - 1) // self.steps_per_epoch

    def divide(self, index: int, among: int) -> None:
        """Divides the images of all later steps among `among` workers; this worker is the
        `index`-th.
        """
        self._index, self._among = index, among

    def indices(self, step: int, index: int | None = None) -> Int64[Tensor, " b"]:
        """Returns the images of this worker at `step`, or those of the `index`-th worker."""
        epoch = self.epoch(step)
        if (
            epoch != self._epoch
        ):  # from the seed, not from the last order: a resume may begin in any epoch
            generator = Generator().manual_seed(derive(self._seed, "order", epoch))
            self._epoch, self._order = epoch, torch.randperm(self._images, generator=generator)
        first = (step - 1) % self.steps_per_epoch * self._of_step
        own = part(self._of_step, self._index if index is None else index, self._among)
        return self._order[first + own.start : first + own.stop]
