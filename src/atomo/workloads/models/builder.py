"""Entries of the table of networks: a name, a builder, and the smallest input.

Networks with an ImageNet and a CIFAR layout choose between them by the image: see `is_large`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from atomo.errors import ConfigError

__all__ = ["Builder", "Shape", "by_name", "is_large", "torchvision_builder"]

Shape = tuple[int, int, int]  # channels, height, width

LARGE = 128  # pixels; half the size of ImageNet layouts, and twice Tiny ImageNet


@dataclass(frozen=True)
class Builder:
    """Builds one network for images of any sufficient shape and any number of classes."""

    name: str
    build: Callable[[Shape, int], torch.nn.Module]
    """From a shape and a number of classes that it need not check."""
    smallest: int
    """Pixels of each side. Below, the last pooling or stride would have nothing left to reduce."""

    def __call__(self, input_shape: Shape, classes: int) -> torch.nn.Module:
        """Builds the network for images of `input_shape`: its outputs are logits, one a class.

        Raises:
            ConfigError: no such images exist, they are too small, or there is no class.
        """
        channels, *sides = input_shape
        if min(input_shape) < 1:
            raise ConfigError(
                f"{self.name}: input shape {input_shape}; channels, height and width start at 1"
            )
        if min(sides) < self.smallest:
            smallest = (channels, self.smallest, self.smallest)
            raise ConfigError(f"{self.name}: input {input_shape} is too small; at least {smallest}")
        if classes < 1:
            raise ConfigError(f"{self.name}: {classes} classes; at least 1")
        return self.build(input_shape, classes)


def by_name(builders: Iterable[Builder]) -> Mapping[str, Builder]:
    """Returns a family of networks, as the table of all refers to it."""
    return MappingProxyType({builder.name: builder for builder in builders})


def torchvision_builder(name: str) -> Any:
    """Returns a builder of torchvision's model of this name.

    It is imported where it is needed: that takes as long as torch itself, in every process of a
    run, and the smaller networks do without it.
    """
    from torchvision import models

    return getattr(models, name)


def is_large(input_shape: Shape) -> bool:
    """True if images of this shape get the ImageNet layout of a network, not the CIFAR one."""
    return min(input_shape[1:]) >= LARGE
