"""Published ways to augment, scale and normalise photographs.

It is independent of the data set: each preparation is for any data set of colour images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final, cast, final

import torch
from jaxtyping import UInt8

from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.workloads.datasets.arrays import ArraySplit, Normalisation
from atomo.workloads.datasets.base import Dataset, Split
from atomo.workloads.datasets.photographs.photos import (
    IMAGENET_NORMALISATION,
    INCEPTION,
    Augment,
    PhotoSplit,
    between,
    centre,
    crop,
    photo_shape,
)

__all__ = ["PREPARATIONS", "Preparation", "prepare_images"]

HALF = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SMALLEST: Final = 8  # pixels a side; a blur needs a few
BLUR: Final = (0.1, 5.0)  # standard deviation, pixels
KERNEL: Final = (5, 9)  # of the blur: width and height, pixels
TURN: Final = (30.0, 70.0)  # degrees, counter-clockwise


@final
@dataclass(frozen=True)
class Preparation:
    """Transformations of photographs: in training, in evaluation, and in both."""

    augment: Augment
    view: Callable[[UInt8[torch.Tensor, "3 h w"], int], UInt8[torch.Tensor, "3 s s"]]
    normalise: Normalisation


def squash(photo: UInt8[torch.Tensor, "3 h w"], size: int) -> UInt8[torch.Tensor, "3 s s"]:
    """Returns the whole photograph, scaled without regard to its aspect ratio."""
    from torchvision.transforms.v2 import functional as transforms  # late: see data/official.py

    return cast(torch.Tensor, transforms.resize(photo, [size, size], antialias=True))


def turn(
    photo: UInt8[torch.Tensor, "3 h w"], size: int, draws: Sequence[float]
) -> UInt8[torch.Tensor, "3 s s"]:
    """Mirrors in each direction half of the time, blurs and turns; corners become black."""
    from torchvision.transforms.v2 import functional as transforms  # late: see data/official.py

    across, down, blur, angle = draws
    image = squash(photo, size)
    image = image.flip(2) if across < 0.5 else image
    image = image.flip(1) if down < 0.5 else image
    sigma = between(BLUR, blur)
    blurred = transforms.gaussian_blur(image, list(KERNEL), [sigma, sigma])
    return cast(torch.Tensor, transforms.rotate(blurred, between(TURN, angle)))


VIT = Augment(INCEPTION.draws, partial(crop, area=(0.05, 1.0), mirror=False))
PREPARATIONS: Final[Mapping[str, Preparation]] = MappingProxyType(
    {
        "photos": Preparation(INCEPTION, centre, IMAGENET_NORMALISATION),
        "vit": Preparation(VIT, squash, HALF),  # as DRAGONN fine-tunes ViT and Mixer
        "food": Preparation(Augment(4, turn), squash, HALF),  # of 30 kinds, from folders
    }
)


def prepare_images(data: Dataset, name: str, image_size: int | None) -> Dataset:
    """Returns the same images, prepared in another way; `image_size` pixels a side, or 224.

    Raises:
        ConfigError: there is no such preparation, the size is too small, or there are no colour
            images.
    """
    preparation = PREPARATIONS[resolve("augmentation", name, PREPARATIONS)]
    shape = photo_shape(image_size)
    if shape[1] < SMALLEST:
        raise ConfigError(
            f"image size {shape[1]}: --task 'images(augment={name})' takes at least {SMALLEST}"
        )
    train, test = (photos(data, split, shape[1], preparation) for split in (data.train, data.test))
    return replace(
        data, input_shape=shape, train=replace(train, augment=preparation.augment), test=test
    )


def photos(data: Dataset, split: Split, size: int, preparation: Preparation) -> PhotoSplit:
    """Returns a split as photographs, not augmented."""
    if isinstance(split, PhotoSplit):
        return PhotoSplit(
            split.read, split.labels, size, preparation.normalise, view=preparation.view
        )
    if not isinstance(split, ArraySplit) or data.input_shape[0] != 3:
        raise ConfigError(
            f"--task 'images(augment=...)': {data.name} has no colour images; choose another "
            "data set, or leave it out"
        )
    read = split.read
    return PhotoSplit(
        lambda index: read(torch.tensor([index]))[0],
        split.labels,
        size,
        preparation.normalise,
        view=preparation.view,
    )
