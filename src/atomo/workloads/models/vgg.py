"""VGG, with and without batch normalisation: Simonyan and Zisserman, "Very Deep Convolutional
Networks for Large-Scale Image Recognition", ICLR 2015.
"""

from collections import OrderedDict
from functools import partial

from torch.nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
)

from atomo.workloads.models.builder import Builder, Shape, by_name, is_large, torchvision_builder
from atomo.workloads.models.initialise import he_normal

__all__ = ["VGGS"]

WIDTHS = (64, 128, 256, 512, 512)

# Convolutions in each stage: configurations A, B, D and E of the paper's table 1.
DEPTHS = {
    "VGG11": (1, 1, 2, 2, 2),
    "VGG13": (2, 2, 2, 2, 2),
    "VGG16": (2, 2, 3, 3, 3),
    "VGG19": (2, 2, 4, 4, 4),
}


def vgg(depths: tuple[int, ...], normalise: bool, input_shape: Shape, classes: int) -> Module:
    """Returns the published head (4096, 4096) for large images, else two hidden layers of 512."""
    features = convolutions(depths, normalise, input_shape[0])
    if is_large(input_shape):
        network: Module = torchvision_builder("VGG")(features, num_classes=classes)
        return network
    network = Sequential(
        OrderedDict(
            features=features,
            pool=AdaptiveAvgPool2d(1),
            flatten=Flatten(),
            classifier=head(classes),
        )
    )
    he_normal(network)
    return network


def convolutions(depths: tuple[int, ...], normalise: bool, channels: int) -> Sequential:
    """Builds five stages of 3x3 convolutions, each halving the image at its end.

    Pooling rounds up, which changes nothing at 32 or 224 pixels and lets 28 pass.
    """
    layers: list[Module] = []
    for depth, width in zip(depths, WIDTHS, strict=True):
        for _ in range(depth):
            norm = [BatchNorm2d(width)] if normalise else []
            layers += [Conv2d(channels, width, 3, padding=1), *norm, ReLU(inplace=True)]
            channels = width
        layers.append(MaxPool2d(2, ceil_mode=True))
    return Sequential(*layers)


def head(classes: int) -> Module:
    """Returns the classifier that CIFAR gets: 512, 512, classes."""
    return Sequential(
        Dropout(),
        Linear(512, 512),
        ReLU(inplace=True),
        Dropout(),
        Linear(512, 512),
        ReLU(inplace=True),
        Linear(512, classes),
    )


VGGS = by_name(
    Builder(name + suffix, partial(vgg, depths, normalise), smallest=17)
    for suffix, normalise in (("", False), ("_BN", True))
    for name, depths in DEPTHS.items()
)
