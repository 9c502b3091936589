"""LeNet in its present form: LeCun et al., "Gradient-Based Learning Applied to Document
Recognition", 1998, in the widths that Caffe gave it (20, 50, 500).
"""

from collections import OrderedDict

from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential

from atomo.workloads.models.builder import Builder, Shape
from atomo.workloads.models.initialise import lecun_uniform

__all__ = ["LENET"]


def lenet(input_shape: Shape, classes: int) -> Module:
    """Returns two convolutions, each pooled, and two linear layers; the first takes any
    image size.
    """
    channels, height, width = input_shape
    network = Sequential(
        OrderedDict(
            conv1=Conv2d(channels, 20, 5),
            pool1=MaxPool2d(2),
            conv2=Conv2d(20, 50, 5),
            pool2=MaxPool2d(2),
            flatten=Flatten(),
            fc1=Linear(50 * pooled(height) * pooled(width), 500),
            relu=ReLU(inplace=True),
            fc2=Linear(500, classes),
        )
    )
    lecun_uniform(network)
    return network


def pooled(side: int) -> int:
    """Computes the side of `side` pixels after two 5x5 convolutions, each halved by pooling."""
    return ((side - 4) // 2 - 4) // 2


LENET = Builder("LeNet", lenet, smallest=16)
