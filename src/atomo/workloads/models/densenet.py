"""DenseNet-BC: Huang et al., "Densely Connected Convolutional Networks", CVPR 2017."""

from torch.nn import Conv2d, Module

from atomo.workloads.models.builder import Builder, Shape, is_large, torchvision_builder
from atomo.workloads.models.initialise import he_normal

__all__ = ["DENSENET"]


def densenet(input_shape: Shape, classes: int) -> Module:
    """Builds DenseNet-121 for large images, else the paper's 100 layers of growth rate 12 for
    CIFAR.
    """
    layers = layers121 if is_large(input_shape) else layers100
    network = layers(input_shape[0], classes)
    he_normal(network)
    return network


def layers121(channels: int, classes: int) -> Module:
    """Builds growth rate 32 in four blocks: table 1 of the paper."""
    network: Module = torchvision_builder("densenet121")(num_classes=classes)
    first = Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    network.set_submodule("features.conv0", first)
    return network


def layers100(channels: int, classes: int) -> Module:
    """Builds growth rate 12 in three blocks of 16 layers, two convolutions each: section 4.1."""
    network: Module = torchvision_builder("DenseNet")(
        growth_rate=12, block_config=(16, 16, 16), num_init_features=24, num_classes=classes
    )
    first = Conv2d(channels, 24, 3, padding=1, bias=False)
    network.set_submodule("features.conv0", first)
    for name in ("norm0", "relu0", "pool0"):  # only ImageNet's layout has them
        delattr(network.features, name)
    return network


DENSENET = Builder("DenseNet", densenet, smallest=4)
