"""Splits of photographs of any size, cropped and resized to one size on access."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float, Int64, UInt8

from atomo.errors import ConfigError
from atomo.workloads.datasets.arrays import Normalisation
from atomo.workloads.datasets.base import Split
from atomo.workloads.datasets.hashing import uniforms

__all__ = [
    "IMAGENET_NORMALISATION",
    "INCEPTION",
    "PHOTO_SIZE",
    "Augment",
    "PhotoSplit",
    "between",
    "centre",
    "crop",
    "photo_shape",
]

PHOTO_SIZE = 224
IMAGENET_NORMALISATION = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

AREA = 0.08, 1.0  # of the photograph that a random crop covers
LOG_RATIO = math.log(3 / 4), math.log(4 / 3)  # of its width to its height
TRIES = 10  # crops drawn before the largest central one is taken
DRAWS = 2 * TRIES + 3  # two a try, the position and the mirroring
MARGIN = 256 / 224  # the shorter side before the central crop, to the size after it


def photo_shape(image_size: int | None) -> tuple[int, int, int]:
    """Returns the shape of an image in a batch of photographs.

    Raises:
        ConfigError: the size is not positive.
    """
    size = PHOTO_SIZE if image_size is None else image_size
    if size < 1:
        raise ConfigError(f"image size {size}; at least 1 pixel")
    return 3, size, size


@final
@dataclass(frozen=True)
class Augment:
    """A random change of a photograph, which brings it to its final size."""

    draws: int
    """Random numbers in [0, 1) that choose the augmentation."""
    change: Callable[
        [UInt8[torch.Tensor, "3 h w"], int, Sequence[float]], UInt8[torch.Tensor, "3 s s"]
    ]


@final
@dataclass(frozen=True, eq=False)
class PhotoSplit(Split):
    """Photographs of any size, decoded by a few threads that live only while `batch` runs."""

    read: Callable[[int], UInt8[torch.Tensor, "3 h w"]]
    """Decodes the photograph at one index."""
    labels: Int64[torch.Tensor, " n"]
    size: int
    normalise: Normalisation
    augment: Augment | None = None
    """Transformation where a seed is given; without a seed, or without this, `view`."""
    view: Callable[[UInt8[torch.Tensor, "3 h w"], int], UInt8[torch.Tensor, "3 s s"]] | None = None
    """Transformation for evaluation; None: the centre of the photograph."""
    threads: int = 4

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, indices: Int64[torch.Tensor, " b"], seed: int | None = None
    ) -> tuple[Float[torch.Tensor, "b c h w"], Int64[torch.Tensor, " b"]]:
        draws: Sequence[Sequence[float] | None] = [None] * len(indices)
        if self.augment and seed is not None:
            draws = uniforms(seed, indices, self.augment.draws).tolist()
        # Decoding and resizing release the interpreter's lock, so threads do run side by side.
        with ThreadPoolExecutor(min(self.threads, len(indices))) as pool:
            images = torch.stack([*pool.map(self.image, indices.tolist(), draws)])
        return self.normalise(images), self.labels[indices]

    def image(self, index: int, draws: Sequence[float] | None) -> UInt8[torch.Tensor, "3 s s"]:
        """Returns one photograph in its final size."""
        photo = self.read(index)
        if self.augment and draws is not None:
            return self.augment.change(photo, self.size, draws)
        return (self.view or centre)(photo, self.size)


def centre(photo: UInt8[torch.Tensor, "3 h w"], size: int) -> UInt8[torch.Tensor, "3 s s"]:
    """Returns the central square of the photograph, once its shorter side is a seventh above
    `size`.
    """
    from torchvision.transforms.v2 import functional as transforms  # late: see data/official.py

    resized = transforms.resize(photo, [round(size * MARGIN)], antialias=True)
    return cast(torch.Tensor, transforms.center_crop(resized, [size, size]))


def crop(
    photo: UInt8[torch.Tensor, "3 h w"],
    size: int,
    draws: Sequence[float],
    area: tuple[float, float] = AREA,
    mirror: bool = True,
) -> UInt8[torch.Tensor, "3 s s"]:
    """Returns the random crop that these `DRAWS` numbers in [0, 1) choose, mirrored half of the
    time.
    """
    from torchvision.transforms.v2 import functional as transforms  # late: see data/official.py

    box = crop_box(photo.shape[1], photo.shape[2], draws, area)
    resized = transforms.resized_crop(photo, *box, [size, size], antialias=True)
    return cast(torch.Tensor, resized.flip(2) if mirror and draws[-1] < 0.5 else resized)


def crop_box(
    height: int, width: int, draws: Sequence[float], area: tuple[float, float] = AREA
) -> tuple[int, int, int, int]:
    """Draws crops; returns top, left, height and width of the first that fits, or else of a central
    one.
    """
    for share, ratio in zip(draws[0 : 2 * TRIES : 2], draws[1 : 2 * TRIES : 2], strict=True):
        pixels = height * width * between(area, share)
        aspect = math.exp(between(LOG_RATIO, ratio))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            down, right = draws[2 * TRIES : 2 * TRIES + 2]
            return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
    return central_box(height, width)


def central_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns the largest central crop with an aspect ratio within bounds."""
    narrowest, widest = map(math.exp, LOG_RATIO)
    w = min(width, max(1, round(height * widest)))
    h = min(height, max(1, round(width / narrowest)))
    return (height - h) // 2, (width - w) // 2, h, w


def between(bounds: tuple[float, float], u: float) -> float:
    """Returns the point at `u` in [0, 1) of the way from one bound to the other."""
    return bounds[0] + (bounds[1] - bounds[0]) * u


INCEPTION = Augment(DRAWS, crop)
"""Szegedy et al., "Going deeper with convolutions", CVPR 2015."""
