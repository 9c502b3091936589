"""FC, the three-layer perceptron of the published ATOMO code (Wang et al., NeurIPS 2018).

Unlike there, no sigmoid follows the last layer: every network here ends in logits.
"""

import math
from collections import OrderedDict

from torch.nn import Flatten, Linear, Module, ReLU, Sequential

from atomo.workloads.models.builder import Builder, Shape
from atomo.workloads.models.initialise import he_normal

__all__ = ["FC"]


def perceptron(input_shape: Shape, classes: int) -> Module:
    """Returns the pixels of an image, 800 and 500 hidden units, the classes."""
    network = Sequential(
        OrderedDict(
            flatten=Flatten(),
            fc1=Linear(math.prod(input_shape), 800),
            relu1=ReLU(inplace=True),
            fc2=Linear(800, 500),
            relu2=ReLU(inplace=True),
            fc3=Linear(500, classes),
        )
    )
    he_normal(network)
    return network


FC = Builder("FC", perceptron, smallest=1)
