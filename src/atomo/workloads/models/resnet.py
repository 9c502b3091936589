"""ResNets of four stages: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
table 1. The three-stage family of the same paper, made for CIFAR, is in `cifar_resnet`.
"""

from functools import partial

from torch.nn import Conv2d, Identity, Module

from atomo.workloads.models.builder import Builder, Shape, by_name, is_large, torchvision_builder
from atomo.workloads.models.initialise import he_normal

__all__ = ["RESNETS"]


def resnet(name: str, input_shape: Shape, classes: int) -> Module:
    """Returns the published network.

    For small images the first convolution is 3x3 with stride 1, and no pooling follows it.
    """
    network: Module = torchvision_builder(name)(num_classes=classes)
    channels = input_shape[0]
    if is_large(input_shape):
        network.conv1 = Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    else:
        network.conv1 = Conv2d(channels, 64, 3, padding=1, bias=False)
        network.maxpool = Identity()
    he_normal(network)
    return network


RESNETS = by_name(
    Builder(name, partial(resnet, name.lower()), smallest=5)
    for name in ("ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152")
)
