"""MLP-Mixers: Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision", NeurIPS 2021.

They are ours, since torchvision has none and timm is an extra.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, Sequential

from atomo.workloads.models.builder import Builder, Shape, by_name
from atomo.workloads.models.patches import EPSILON, Mlp, Patches, first_weights

__all__ = ["MIXERS", "MixerSize", "mixer"]


@final
@dataclass(frozen=True)
class MixerSize:
    """Table 1 of the paper."""

    width: int
    layers: int
    tokens_hidden: int
    channels_hidden: int
    patch: int = 16
    """Pixels a side."""


@final
class Block(Module):
    """Two layers across the patches, then two across the channels, each with a norm before it."""

    def __init__(self, size: MixerSize, patches: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(size.width, eps=EPSILON)
        self.mlp_tokens = Mlp(patches, size.tokens_hidden)
        self.norm2 = LayerNorm(size.width, eps=EPSILON)
        self.mlp_channels = Mlp(size.width, size.channels_hidden)

    def forward(self, x: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        output: Tensor = x + self.mlp_channels(self.norm2(x))
        return output


@final
class MlpMixer(Module):
    """Patches, the blocks, the mean over the patches, the classes."""

    def __init__(self, size: MixerSize, input_shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = Patches(input_shape, size.patch, size.width)
        self.blocks = Sequential(*(Block(size, self.stem.count) for _ in range(size.layers)))
        self.norm = LayerNorm(size.width, eps=EPSILON)
        self.head = Linear(size.width, classes)
        first_weights(self, self.head)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n classes"]:
        scores: Tensor = self.head(self.norm(self.blocks(self.stem(images))).mean(1))
        return scores


def mixer(size: MixerSize, input_shape: Shape, classes: int) -> Module:
    """Returns a Mixer of any size. Its first layers across patches are as long as an image has
    patches.
    """
    return MlpMixer(size, input_shape, classes)


def sized(size: MixerSize) -> Callable[[Shape, int], Module]:
    return partial(mixer, size)


MIXERS = by_name(
    [
        Builder("Mixer-B_16", sized(MixerSize(768, 12, 384, 3072)), smallest=16),
        Builder("Mixer-L_16", sized(MixerSize(1024, 24, 512, 4096)), smallest=16),
    ]
)
