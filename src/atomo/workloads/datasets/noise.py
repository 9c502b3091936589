"""Noise of any size, with nothing to download: for measuring how fast training is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from atomo.workloads.datasets.base import Dataset, DatasetSource, Split

__all__ = ["NOISE"]

CLASSES: Final = 1000  # as ImageNet has
SIDE: Final = 224
TRAIN: Final = 1_281_167  # as ImageNet has; drawn over and over
TEST: Final = 64
DRAWN: Final = 64  # images in memory, which all others repeat


@final
@dataclass(frozen=True, eq=False)
class NoiseSplit(Split):
    """A few drawn images, as often as asked for."""

    drawn: Float[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    images: int

    def __len__(self) -> int:
        return self.images

    def batch(
        self, indices: Int64[Tensor, " b"], seed: int | None = None
    ) -> tuple[Float[Tensor, "b c h w"], Int64[Tensor, " b"]]:
        chosen = indices % len(self.drawn)
        return self.drawn[chosen], self.labels[chosen]


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Draws the images, alike everywhere."""
    del data_dir  # there are no files
    shape = 3, image_size or SIDE, image_size or SIDE
    return Dataset("Noise", CLASSES, shape, split(shape, TRAIN, 1), split(shape, TEST, 2))


def split(shape: tuple[int, int, int], images: int, seed: int) -> NoiseSplit:
    generator = Generator().manual_seed(seed)
    drawn = torch.randn(DRAWN, *shape, generator=generator)
    return NoiseSplit(drawn, torch.randint(CLASSES, (DRAWN,), generator=generator), images)


NOISE = DatasetSource(
    "Noise", (3, SIDE, SIDE), CLASSES, load, by_hand="nothing anywhere: it is drawn"
)
