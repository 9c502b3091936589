"""ResNets of four stages: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
table 1. The three-stage family of the same paper, made for CIFAR, is in `cifar_resnet`.
"""

from collections.abc import Callable
from functools import partial

import torchvision
from torch.nn import Conv2d, Identity, Module

from atomo.models.builder import Builder, Shape, is_large
from atomo.models.initialise import he_normal

__all__ = ["RESNETS"]


def resnet(published: Callable[..., Module], input_shape: Shape, classes: int) -> Module:
    """The published network; small images skip the part that only shrinks large ones.

    That is, their first convolution is 3x3 with stride 1, and no pooling follows it.
    """
    network = published(num_classes=classes)
    channels = input_shape[0]
    if is_large(input_shape):
        network.conv1 = Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    else:
        network.conv1 = Conv2d(channels, 64, 3, padding=1, bias=False)
        network.maxpool = Identity()
    he_normal(network)
    return network


RESNETS = tuple(
    Builder(name, partial(resnet, published), smallest=5)
    for name, published in (
        ("ResNet18", torchvision.models.resnet18),
        ("ResNet34", torchvision.models.resnet34),
        ("ResNet50", torchvision.models.resnet50),
        ("ResNet101", torchvision.models.resnet101),
        ("ResNet152", torchvision.models.resnet152),
    )
)
