"""Splits of images in one size: a whole batch is augmented and normalised together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias, final

import torch
from jaxtyping import Float, Int64, UInt8

from atomo.workloads.datasets.base import Split
from atomo.workloads.datasets.hashing import uniforms

__all__ = ["ArraySplit", "CropFlip", "InMemory", "Normalisation", "in_memory"]

Read: TypeAlias = "Callable[[Int64[torch.Tensor, ' b']], UInt8[torch.Tensor, 'b c h w']]"

MOST: Final = 2**31
"""The maximum size in bytes of a split that stays on a device: CIFAR-10 has 1/14 of it."""


@final
@dataclass(frozen=True)
class Normalisation:
    """Pixels, taken from 0..255 to 0..1, minus `mean`, over `std`; one of each per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: UInt8[torch.Tensor, "b c h w"]) -> Float[torch.Tensor, "b c h w"]:
        factor, shift = constants(self, images.device)
        return images.float().mul_(factor).sub_(shift)


@lru_cache
def constants(how: Normalisation, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scale and the offset of pixels, put on a device once."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (how.mean, how.std))
    return (1 / (255 * std)).to(device), (mean / std).to(device)


@final
@dataclass(frozen=True)
class CropFlip:
    """Moves each image up to `padding` pixels each way, filling with black; may mirror it."""

    padding: int = 4
    flip: bool = True
    """Mirror every second image, left to right."""

    def __call__(
        self, images: UInt8[torch.Tensor, "b c h w"], indices: Int64[torch.Tensor, " b"], seed: int
    ) -> UInt8[torch.Tensor, "b c h w"]:
        """Returns the augmented images on their device: equal for a seed and an index on every
        device.
        """
        b, c, h, w = images.shape
        device = images.device
        u = uniforms(seed, indices.to(device), 3)
        top, left = ((u[:, :2] * (2 * self.padding + 1)).long()).unbind(1)
        mirrored = (u[:, 2:] < 0.5) & self.flip
        across = torch.arange(w, device=device)
        rows = top[:, None] + torch.arange(h, device=device)
        columns = left[:, None] + torch.where(mirrored, across.flip(0), across)
        padded = torch.nn.functional.pad(images, [self.padding] * 4)
        # One gather crops and mirrors; it is twice as fast as indexing with four tensors.
        source = rows[:, :, None] * padded.shape[3] + columns[:, None, :]
        source = source.view(b, 1, h * w).expand(-1, c, -1)
        return padded.flatten(2).gather(2, source).view(b, c, h, w)


@final
@dataclass(frozen=True, eq=False)
class ArraySplit(Split):
    """Images of one size, from memory or from the source of `read`."""

    read: Read
    """Gives the images at some indices."""
    labels: Int64[torch.Tensor, " n"]
    normalise: Normalisation
    augment: CropFlip | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, indices: Int64[torch.Tensor, " b"], seed: int | None = None
    ) -> tuple[Float[torch.Tensor, "b c h w"], Int64[torch.Tensor, " b"]]:
        images = self.read(indices)
        if self.augment and seed is not None:
            images = self.augment(images, indices, seed)
        return self.normalise(images), self.labels[indices]

    def on(self, device: torch.device) -> ArraySplit:
        if not isinstance(self.read, InMemory) or self.read.images.nbytes > MOST:
            return self
        return replace(
            self, read=InMemory(self.read.images.to(device)), labels=self.labels.to(device)
        )


@final
@dataclass(frozen=True, eq=False)
class InMemory:
    """A tensor that holds the whole split."""

    images: UInt8[torch.Tensor, "n c h w"]

    def __call__(self, indices: Int64[torch.Tensor, " b"]) -> UInt8[torch.Tensor, "b c h w"]:
        return self.images[indices]


def in_memory(images: UInt8[torch.Tensor, "n c h w"]) -> Read:
    """Reads from a tensor that holds the whole split."""
    return InMemory(images)
