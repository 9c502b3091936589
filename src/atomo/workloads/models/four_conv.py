"""Four convolutions, each pooled: the small network with which folders of food are taught."""

from collections import OrderedDict
from itertools import chain

from torch.nn import (
    AdaptiveAvgPool2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
)

from atomo.workloads.models.builder import Builder, Shape, is_large

__all__ = ["FOUR_CONV"]

KERNELS = ((32, 5), (64, 5), (128, 3), (256, 5))  # channels, and pixels a side


def four_conv(input_shape: Shape, classes: int) -> Module:
    """Returns the published layout, with torch's first weights; small images keep their borders."""
    large, channels = is_large(input_shape), [input_shape[0], *(wide for wide, _ in KERNELS)]
    layers = (
        (Conv2d(inputs, wide, side, padding=0 if large else side // 2), ReLU(True), MaxPool2d(2))
        for inputs, (wide, side) in zip(channels, KERNELS, strict=False)
    )
    return Sequential(
        OrderedDict(
            features=Sequential(*chain.from_iterable(layers)),
            pool=AdaptiveAvgPool2d(1),
            flatten=Flatten(),
            fc1=Linear(channels[-1], classes),
        )
    )


FOUR_CONV = Builder("FourConv", four_conv, smallest=16)
