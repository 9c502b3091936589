"""AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.

It has mostly linear layers, so low ranks compress its gradients best.
"""

from collections import OrderedDict

from torch.nn import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential

from atomo.workloads.models.builder import Builder, Shape, is_large, torchvision_builder
from atomo.workloads.models.initialise import he_normal

__all__ = ["ALEXNET"]


def alexnet(input_shape: Shape, classes: int) -> Module:
    """Returns the published layout for large images, with torch's first weights; else `small`."""
    if not is_large(input_shape):
        return small(input_shape, classes)
    network: Module = torchvision_builder("alexnet")(num_classes=classes)
    first = Conv2d(input_shape[0], 64, 11, stride=4, padding=2)
    network.set_submodule("features.0", first)
    return network


def small(input_shape: Shape, classes: int) -> Module:
    """Returns the same widths with 3x3 kernels, and a first stride of 2 where the published one has
    4.
    """
    channels, height, width = input_shape
    cells = -(-height // 16) * -(-width // 16)  # each of the four halvings rounds up
    network = Sequential(
        OrderedDict(
            features=Sequential(
                *convolution(channels, 64, stride=2),
                MaxPool2d(2, ceil_mode=True),
                *convolution(64, 192),
                MaxPool2d(2, ceil_mode=True),
                *convolution(192, 384),
                *convolution(384, 256),
                *convolution(256, 256),
                MaxPool2d(2, ceil_mode=True),
            ),
            flatten=Flatten(),
            classifier=head(256 * cells, classes),
        )
    )
    he_normal(network)
    return network


def convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[Module, Module]:
    """Returns a 3x3 convolution that keeps the size of its image, over its stride, and its ReLU."""
    return Conv2d(inputs, outputs, 3, stride=stride, padding=1), ReLU(inplace=True)


def head(features: int, classes: int) -> Module:
    """Returns the published classifier: 4096, 4096, classes."""
    return Sequential(
        Dropout(),
        Linear(features, 4096),
        ReLU(inplace=True),
        Dropout(),
        Linear(4096, 4096),
        ReLU(inplace=True),
        Linear(4096, classes),
    )


ALEXNET = Builder("AlexNet", alexnet, smallest=9)
