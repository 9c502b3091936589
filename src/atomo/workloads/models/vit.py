"""Vision Transformers: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.

They are ours, and not torchvision's, since that one takes square colour images alone, and its
tensors have other names than timm's, in which published weights are passed on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Dropout, LayerNorm, Linear, Module, Parameter, Sequential, init
from torch.nn.functional import scaled_dot_product_attention

from atomo.workloads.models.builder import Builder, Shape, by_name
from atomo.workloads.models.patches import EPSILON, Mlp, Patches, first_weights

__all__ = ["VITS", "VitSize", "vit"]


@final
@dataclass(frozen=True)
class VitSize:
    """Table 1 of the paper."""

    width: int
    layers: int
    heads: int
    hidden: int
    patch: int = 16
    """Pixels a side."""


@final
class Attention(Module):
    """Each head mixes tokens by the softmax of queries times keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        mixed = scaled_dot_product_attention(query, key, value)
        output: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return output


@final
class Block(Module):
    """Attention, then two layers on each token, each with a norm before it and a shortcut."""

    def __init__(self, size: VitSize, dropout: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(size.width, eps=EPSILON)
        self.attn = Attention(size.width, size.heads)
        self.norm2 = LayerNorm(size.width, eps=EPSILON)
        self.mlp = Mlp(size.width, size.hidden, dropout)

    def forward(self, x: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
        x = x + self.attn(self.norm1(x))
        output: Tensor = x + self.mlp(self.norm2(x))
        return output


@final
class VisionTransformer(Module):
    """Patches and a token of the class, their positions, the blocks, and the class's token."""

    def __init__(self, size: VitSize, input_shape: Shape, classes: int, dropout: float) -> None:
        super().__init__()
        self.patch_embed = Patches(input_shape, size.patch, size.width)
        self.cls_token = Parameter(torch.zeros(1, 1, size.width))
        self.pos_embed = Parameter(torch.empty(1, 1 + self.patch_embed.count, size.width))
        self.pos_drop = Dropout(dropout)
        self.blocks = Sequential(*(Block(size, dropout) for _ in range(size.layers)))
        self.norm = LayerNorm(size.width, eps=EPSILON)
        self.head = Linear(size.width, classes)
        first_weights(self, self.head)
        init.normal_(self.pos_embed, std=0.02)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n classes"]:
        patches = self.patch_embed(images)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], 1)
        tokens = self.blocks(self.pos_drop(tokens + self.pos_embed))
        scores: Tensor = self.head(self.norm(tokens[:, 0]))
        return scores


def vit(size: VitSize, input_shape: Shape, classes: int, dropout: float = 0.1) -> Module:
    """Returns a Vision Transformer of any size; dropout, as it was fine-tuned with, of the MLPs."""
    return VisionTransformer(size, input_shape, classes, dropout)


def sized(size: VitSize) -> Callable[[Shape, int], Module]:
    return partial(vit, size)


VITS = by_name(
    [
        Builder("ViT-Ti_16", sized(VitSize(192, 12, 3, 768)), smallest=16),
        Builder("ViT-S_16", sized(VitSize(384, 12, 6, 1536)), smallest=16),
        Builder("ViT-B_16", sized(VitSize(768, 12, 12, 3072)), smallest=16),
        Builder("ViT-B_32", sized(VitSize(768, 12, 12, 3072, patch=32)), smallest=32),
        Builder("ViT-L_16", sized(VitSize(1024, 24, 16, 4096)), smallest=16),
    ]
)
