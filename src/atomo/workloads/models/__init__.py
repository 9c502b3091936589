"""The networks, by name. To add one: write its builder, then list it in MODELS."""

from __future__ import annotations

from typing import Final

import torch

from atomo.core.names import resolve
from atomo.core.tables import Table
from atomo.workloads.models.builder import Builder, Shape
from atomo.workloads.models.cifar_examples import CIFAR_EXAMPLES
from atomo.workloads.models.foreign import (
    build_foreign,
    build_own,
    foreign_name,
    is_foreign,
    is_own,
    probe_output,
)

__all__ = [
    "CIFAR_EXAMPLES",
    "MODELS",
    "Builder",
    "Shape",
    "build_model",
    "build_own",
    "is_foreign",
    "is_own",
    "network_named",
    "probe_output",
]

MODELS: Final[Table[Builder]] = Table(
    __name__,
    {
        "LeNet": "lenet:LENET",
        "FC": "perceptron:FC",
        "FourConv": "four_conv:FOUR_CONV",
        "AlexNet": "alexnet:ALEXNET",
        "VGG11": "vgg:VGGS",
        "VGG13": "vgg:VGGS",
        "VGG16": "vgg:VGGS",
        "VGG19": "vgg:VGGS",
        "VGG11_BN": "vgg:VGGS",
        "VGG13_BN": "vgg:VGGS",
        "VGG16_BN": "vgg:VGGS",
        "VGG19_BN": "vgg:VGGS",
        "ResNet18": "resnet:RESNETS",
        "ResNet34": "resnet:RESNETS",
        "ResNet50": "resnet:RESNETS",
        "ResNet101": "resnet:RESNETS",
        "ResNet152": "resnet:RESNETS",
        "ResNet20": "cifar_resnet:CIFAR_RESNETS",
        "ResNet32": "cifar_resnet:CIFAR_RESNETS",
        "ResNet44": "cifar_resnet:CIFAR_RESNETS",
        "ResNet56": "cifar_resnet:CIFAR_RESNETS",
        "ResNet110": "cifar_resnet:CIFAR_RESNETS",
        "DenseNet": "densenet:DENSENET",
        "ViT-Ti_16": "vit:VITS",
        "ViT-S_16": "vit:VITS",
        "ViT-B_16": "vit:VITS",
        "ViT-B_32": "vit:VITS",
        "ViT-L_16": "vit:VITS",
        "Mixer-B_16": "mixer:MIXERS",
        "Mixer-L_16": "mixer:MIXERS",
    },
)

ALL: Final[Table[Builder]] = Table(
    __name__,
    {**MODELS.places, **dict.fromkeys(CIFAR_EXAMPLES, "cifar_examples:CIFAR_EXAMPLES")},
)


def build_model(name: str, input_shape: Shape, classes: int) -> torch.nn.Module:
    """Builds the network called `name`, in any case, for images of (channels, height, width).

    `torchvision:NAME`, `timm:NAME` and `module.path:callable` are those of other packages.

    It maps a batch of images to logits, one a class. The first weights come from torch's global
    generator: call `torch.manual_seed` before, and every process that does so builds the same.

    >>> sum(p.numel() for p in build_model("lenet", (1, 28, 28), 10).parameters())
    431080

    Raises:
        ConfigError: no network has this name, the images are too small for it, or `classes` is 0.
    """
    if is_foreign(name):
        return build_foreign(name, input_shape, classes)
    return ALL[resolve("network", name, ALL)](input_shape, classes)


def network_named(name: str) -> str:
    """Returns the spelling of a network's name, ours or that of another package.

    >>> network_named("resnet-18"), network_named("torchvision:resnet18")
    ('ResNet18', 'torchvision:resnet18')

    Raises:
        ConfigError: there is no such network; the message offers the nearest.
    """
    return foreign_name(name) if is_foreign(name) else resolve("network", name, ALL)
