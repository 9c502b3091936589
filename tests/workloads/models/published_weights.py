"""Files of weights as Google published them, made of drawn numbers.

The formulas here are those of the papers, on the published layouts: they know nothing of ours.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

Arrays = Mapping[str, Tensor]


def mlp_shapes(prefix: str, width: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}/Dense_0/kernel", (width, hidden)
    yield f"{prefix}/Dense_0/bias", (hidden,)
    yield f"{prefix}/Dense_1/kernel", (hidden, width)
    yield f"{prefix}/Dense_1/bias", (width,)


def norm_shapes(prefix: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}/scale", (width,)
    yield f"{prefix}/bias", (width,)


def vit_shapes(
    width: int, layers: int, heads: int, hidden: int, patch: int, tokens: int, classes: int
) -> dict[str, tuple[int, ...]]:
    shapes = {
        "cls": (1, 1, width),
        "embedding/kernel": (patch, patch, 3, width),
        "embedding/bias": (width,),
        "Transformer/posembed_input/pos_embedding": (1, tokens, width),
        "head/kernel": (width, classes),
        "head/bias": (classes,),
        "pre_logits/kernel": (width, width),
        "pre_logits/bias": (width,),
        **dict(norm_shapes("Transformer/encoder_norm", width)),
    }
    for layer in range(layers):
        block = f"Transformer/encoderblock_{layer}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (width, heads, width // heads)
            shapes[f"{attention}/{part}/bias"] = (heads, width // heads)
        shapes[f"{attention}/out/kernel"] = (heads, width // heads, width)
        shapes[f"{attention}/out/bias"] = (width,)
        shapes |= dict(mlp_shapes(f"{block}/MlpBlock_3", width, hidden))
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= dict(norm_shapes(f"{block}/{norm}", width))
    return shapes


def mixer_shapes(
    width: int, layers: int, tokens_hidden: int, hidden: int, patch: int, tokens: int, classes: int
) -> dict[str, tuple[int, ...]]:
    shapes = {
        "stem/kernel": (patch, patch, 3, width),
        "stem/bias": (width,),
        "head/kernel": (width, classes),
        "head/bias": (classes,),
        **dict(norm_shapes("pre_head_layer_norm", width)),
    }
    for layer in range(layers):
        block = f"MixerBlock_{layer}"
        shapes |= dict(mlp_shapes(f"{block}/token_mixing", tokens, tokens_hidden))
        shapes |= dict(mlp_shapes(f"{block}/channel_mixing", width, hidden))
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            shapes |= dict(norm_shapes(f"{block}/{norm}", width))
    return shapes


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {key: torch.randn(shape, generator=generator) / 4 for key, shape in shapes.items()}


def save(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **{key: tensor.detach().numpy() for key, tensor in arrays.items()})
    return path


def norm(arrays: Arrays, prefix: str, x: Tensor) -> Tensor:
    scale, bias = arrays[f"{prefix}/scale"], arrays[f"{prefix}/bias"]
    return layer_norm(x, scale.shape, scale, bias, 1e-6)


def dense(arrays: Arrays, prefix: str, x: Tensor) -> Tensor:
    return x @ arrays[f"{prefix}/kernel"] + arrays[f"{prefix}/bias"]


def two_layers(arrays: Arrays, prefix: str, x: Tensor) -> Tensor:
    return dense(arrays, f"{prefix}/Dense_1", gelu(dense(arrays, f"{prefix}/Dense_0", x)))


def patches(arrays: Arrays, prefix: str, images: Tensor) -> Tensor:
    kernel = arrays[f"{prefix}/kernel"]
    side = kernel.shape[0]
    cut = images.unflatten(2, (-1, side)).unflatten(4, (-1, side))
    return torch.einsum("nchpwq,pqcd->nhwd", cut, kernel).flatten(1, 2) + arrays[f"{prefix}/bias"]


def attention(arrays: Arrays, prefix: str, x: Tensor) -> Tensor:
    query, key, value = (
        torch.einsum("nti,ihd->nthd", x, arrays[f"{prefix}/{part}/kernel"])
        + arrays[f"{prefix}/{part}/bias"]
        for part in ("query", "key", "value")
    )
    weights = (torch.einsum("nthd,nshd->nhts", query, key) / query.shape[3] ** 0.5).softmax(3)
    mixed = torch.einsum("nhts,nshd->nthd", weights, value)
    out = torch.einsum("nthd,hdo->nto", mixed, arrays[f"{prefix}/out/kernel"])
    return out + arrays[f"{prefix}/out/bias"]


def vit_scores(arrays: Arrays, images: Tensor, layers: int) -> Tensor:
    x = patches(arrays, "embedding", images)
    x = torch.cat([arrays["cls"].expand(len(x), -1, -1), x], 1)
    x = x + arrays["Transformer/posembed_input/pos_embedding"]
    for layer in range(layers):
        block = f"Transformer/encoderblock_{layer}"
        seen = norm(arrays, f"{block}/LayerNorm_0", x)
        x = x + attention(arrays, f"{block}/MultiHeadDotProductAttention_1", seen)
        seen = norm(arrays, f"{block}/LayerNorm_2", x)
        x = x + two_layers(arrays, f"{block}/MlpBlock_3", seen)
    return dense(arrays, "head", norm(arrays, "Transformer/encoder_norm", x)[:, 0])


def mixer_scores(arrays: Arrays, images: Tensor, layers: int) -> Tensor:
    x = patches(arrays, "stem", images)
    for layer in range(layers):
        block = f"MixerBlock_{layer}"
        seen = norm(arrays, f"{block}/LayerNorm_0", x).transpose(1, 2)
        x = x + two_layers(arrays, f"{block}/token_mixing", seen).transpose(1, 2)
        seen = norm(arrays, f"{block}/LayerNorm_1", x)
        x = x + two_layers(arrays, f"{block}/channel_mixing", seen)
    return dense(arrays, "head", norm(arrays, "pre_head_layer_norm", x).mean(1))
