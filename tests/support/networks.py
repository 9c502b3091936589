"""A network so small that its training costs hardly more than the exchange around it."""

import math
from collections import OrderedDict

from torch.nn import BatchNorm1d, Flatten, Linear, Module, ReLU, Sequential

SMALL = "networks:small"  # as --network, in this process
SMALL_MB = 0.05  # as --fusion-mb: one bucket for each of its layers


def small(num_classes: int, input_shape: tuple[int, ...]) -> Module:
    """FC with fewer units: two matrices that codecs take, and vectors that are too
    small for them.
    """
    return Sequential(
        OrderedDict(
            flatten=Flatten(),
            fc1=Linear(math.prod(input_shape), 24),
            relu1=ReLU(inplace=True),
            fc2=Linear(24, 400),
            relu2=ReLU(inplace=True),
            fc3=Linear(400, num_classes),
        )
    )


def normed(num_classes: int, input_shape: tuple[int, ...]) -> Module:
    """Returns a network with batch norm, whose statistics a forward pass changes."""
    return Sequential(
        Flatten(),
        Linear(math.prod(input_shape), 24),
        BatchNorm1d(24),
        ReLU(inplace=True),
        Linear(24, num_classes),
    )
