"""Layers that networks of patches share: images cut into tokens, and two layers on each token.

Modules are called as timm calls its own, so its files of weights fit as well.
"""

from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn import Conv2d, Dropout, Linear, Module, init
from torch.nn.functional import gelu

from atomo.workloads.models.builder import Shape

__all__ = ["EPSILON", "Mlp", "Patches", "first_weights"]

EPSILON = 1e-6  # of layer norms: published, where torch's is 1e-5


@final
class Patches(Module):
    """Square patches, row by row, each mapped to a token; incomplete patches at the edges are cut
    off.
    """

    def __init__(self, input_shape: Shape, patch: int, width: int) -> None:
        super().__init__()
        channels, height, width_px = input_shape
        self.count = (height // patch) * (width_px // patch)
        self.proj = Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n count width"]:
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


@final
class Mlp(Module):
    """Two linear layers over the last dimension, a GELU between them."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width)
        self.drop = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        output: Tensor = self.drop(self.fc2(self.drop(gelu(self.fc1(x)))))
        return output


def first_weights(network: Module, head: Linear) -> None:
    """Draws Glorot's uniform for linear layers, LeCun's normal for patches; the head and biases are
    0.

    With a head of zeros the first scores are those of guessing, as in the published fine-tuning.
    """
    for layer in network.modules():
        if isinstance(layer, Linear):
            init.xavier_uniform_(layer.weight)
        elif isinstance(layer, Conv2d):
            init.kaiming_normal_(layer.weight, nonlinearity="linear")
        if isinstance(layer, Conv2d | Linear) and layer.bias is not None:
            init.zeros_(layer.bias)
    init.zeros_(head.weight)
