"""The contract of a data set: two splits of images that can be read in any order.

A split keeps no position and draws no random numbers of its own: the training loop chooses the
indices of each batch, and the augmentation of an image depends on the seed and on its index alone.
So a batch depends neither on how workers divide it, nor on earlier batches.
"""

from __future__ import annotations

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64

from atomo.errors import ConfigError, DataError

__all__ = ["Dataset", "DatasetMissing", "DatasetSource", "Split", "missing", "require_size"]


class Split(ABC):
    """Labelled images, numbered from 0. Abstract; subclasses are final."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of images."""

    @abstractmethod
    def batch(
        self, indices: Int64[torch.Tensor, " b"], seed: int | None = None
    ) -> tuple[Float[torch.Tensor, "b c h w"], Int64[torch.Tensor, " b"]]:
        """Returns the images at `indices`, normalised, in float32, and their labels.

        Args:
            indices: at least one, each in [0, len(self)), in any order; repeats are allowed.
            seed: augments each image as a pure function of this seed and the image's index. To
                augment anew in every epoch, pass `epoch_seed(run_seed, epoch)`. None: no
                augmentation, for evaluation. A split without augmentation (every
                test split, and all of MNIST and Digits) ignores it.

        Raises:
            DataError: an image cannot be read.
        """

    def on(self, device: torch.device) -> Split:
        """Returns a split of the same images that makes its batches on a device, if the images fit
        there; else `self`. Its indices may be on that device too.
        """
        del device
        return self


@dataclass(frozen=True)
class Dataset:
    """A data set that has been found and checked."""

    name: str
    """Its key in `DATASETS`."""
    classes: int
    input_shape: tuple[int, int, int]
    """Channels, height and width of every image in every batch."""
    train: Split
    test: Split


@dataclass(frozen=True)
class DatasetSource:
    """A data set that can be asked for."""

    name: str
    input_shape: tuple[int, int, int] | None
    """None: it depends on the images."""
    classes: int | None
    """None: it depends on the folder."""
    load: Callable[[Path, int | None], Dataset]
    """Reads it from a data directory, in an image size (None: its own)."""
    by_hand: str
    """Files to place by hand, to continue the sentence 'put ...'. {data_dir} is filled in."""
    fetch: Callable[[Path], None] | None = None
    """Downloads it into a data directory and verifies it. None: there is nothing to download."""
    host: Callable[[], str] = str
    """Host that `fetch` downloads from."""
    unpack: Callable[[Path], bool] | None = None
    """Makes it from archives that were put into a data directory; whether they are there."""


class DatasetMissing(DataError):
    """A data set is in none of the places where it is looked for."""


def missing(source: DatasetSource, data_dir: Path, looked: Sequence[str]) -> DatasetMissing:
    """Returns the error for a data set that is not there."""
    remedy = "put " + source.by_hand.format(data_dir=data_dir)
    if source.fetch:
        words = ["atomo", "prepare", "--dataset", source.name, "--data-dir", str(data_dir)]
        command = shlex.join([sys.executable, "-m", *words])
        remedy = f"`{command}` fetches it where there is a network; otherwise {remedy}"
    places = "; ".join(looked)
    return DatasetMissing(f"{source.name} is not in {data_dir} (looked for {places}): {remedy}")


def require_size(name: str, shape: tuple[int, int, int], image_size: int | None) -> None:
    """Refuses an image size that a data set of one fixed size does not come in.

    Raises:
        ConfigError: `image_size` is not the height and width in `shape`.
    """
    _, height, width = shape
    if image_size is not None and (height, width) != (image_size, image_size):
        raise ConfigError(
            f"--image-size {image_size}: {name} comes in {height}x{width} only; "
            "leave it out, or have a task scale it: `atomo train --task 'images(augment=vit)'`"
        )
