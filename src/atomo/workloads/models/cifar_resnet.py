"""The ResNets made for CIFAR: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
section 4.2, with the paper's shortcut for them: option A, which has no parameters.
"""

from collections import OrderedDict
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    Module,
    ReLU,
    Sequential,
)
from torch.nn.functional import pad, relu

from atomo.workloads.models.builder import Builder, Shape, by_name
from atomo.workloads.models.initialise import he_normal

__all__ = ["CIFAR_RESNETS"]

WIDTHS = (16, 32, 64)


@final
class Block(Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.widening = outputs - inputs
        self.conv1 = Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(outputs)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(outputs)

    def forward(self, x: Float[Tensor, "n inputs h w"]) -> Float[Tensor, "n outputs h2 w2"]:
        hidden = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(hidden)) + self.shortcut(x))

    def shortcut(self, x: Float[Tensor, "n inputs h w"]) -> Float[Tensor, "n outputs h2 w2"]:
        """Applies option A: every second pixel, and zeros for the channels that the input lacks."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.widening))


def cifar_resnet(blocks: int, input_shape: Shape, classes: int) -> Module:
    """Returns a first convolution, three stages of `blocks` blocks, the mean over the image, the
    classes.

    6 * `blocks` + 2 layers have weights.
    """
    network = Sequential(
        OrderedDict(
            conv1=Conv2d(input_shape[0], WIDTHS[0], 3, padding=1, bias=False),
            bn1=BatchNorm2d(WIDTHS[0]),
            relu=ReLU(inplace=True),
            stage1=stage(blocks, WIDTHS[0], WIDTHS[0]),
            stage2=stage(blocks, WIDTHS[0], WIDTHS[1]),
            stage3=stage(blocks, WIDTHS[1], WIDTHS[2]),
            pool=AdaptiveAvgPool2d(1),
            flatten=Flatten(),
            fc=Linear(WIDTHS[2], classes),
        )
    )
    he_normal(network)
    return network


def stage(blocks: int, inputs: int, outputs: int) -> Module:
    """Blocks of one width; if the width grows, the first block halves the image."""
    return Sequential(*(Block(outputs if i else inputs, outputs) for i in range(blocks)))


CIFAR_RESNETS = by_name(
    Builder(f"ResNet{layers}", partial(cifar_resnet, (layers - 2) // 6), smallest=3)
    for layers in (20, 32, 44, 56, 110)
)
