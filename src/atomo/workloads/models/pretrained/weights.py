"""Weights from a file, to begin with: `--weights FILE.npz` or `FILE.safetensors`.

Every tensor of the network is in the file in its shape, with two exceptions: the head stays new
where the file's has another number of classes, or none, and position embeddings are resized.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import interpolate

from atomo.errors import ConfigError, DataError
from atomo.workloads.models.pretrained.npz import read_npz
from atomo.workloads.models.pretrained.tensor_files import read_tensors

__all__ = ["load_weights", "resize_positions"]

POSITIONS: Final = ("pos_embed", "pos_embedding")  # as timm and torchvision call them
COUNTERS: Final = "num_batches_tracked"  # of batch norms, which many files leave out


def load_weights(network: Module, path: Path) -> None:
    """Gives the network the weights of a file.

    Args:
        network: any; `.npz` files as published for Vision Transformers and Mixers have names of
            their own, which become those that our networks and timm's have.
        path: safetensors with the network's state dict, or such an `.npz`; nothing is unpickled.

    Raises:
        ConfigError: the file is not of these kinds, or does not fit; the message names the tensor
            and the two shapes.
        DataError: the file cannot be read, or holds NaN or infinity.
    """
    tensors = read(path)
    own = network.state_dict()
    if odd := sorted(tensors.keys() - own.keys()):
        raise misfit(path, f"the network has no {odd[0]} ({len(odd)} such tensors)")
    head = head_of(network)
    chosen = {
        name: fit_tensor(path, name, tensors.get(name), own[name], name in head) for name in own
    }
    with torch.no_grad():
        for name, tensor in chosen.items():
            if tensor is not None:
                own[name].copy_(tensor)


def read(path: Path) -> Mapping[str, Tensor]:
    """Returns the tensors of a file, by the network's names.

    Raises:
        ConfigError: its name ends in neither `.npz` nor `.safetensors`.
        DataError: the file cannot be read.
    """
    kinds = ".npz, as published for ViT and Mixer, or .safetensors with a state dict"
    return read_tensors(path, "--weights", read_npz, kinds)


def head_of(network: Module) -> frozenset[str]:
    """Returns the names of the tensors of the last layer, which depends on the classes."""
    owners = [name for name, part in network.named_modules() if "weight" in dict(part._parameters)]
    prefix = f"{owners[-1]}." if owners and owners[-1] else ""
    return frozenset({prefix + "weight", prefix + "bias"}) if owners else frozenset()


def fit_tensor(
    path: Path, name: str, tensor: Tensor | None, own: Tensor, head: bool
) -> Tensor | None:
    """Fits a tensor of a file to one of the network; None: the network keeps its own.

    Raises:
        ConfigError: the tensor is not there, or has another shape.
        DataError: the tensor holds NaN or infinity.
    """
    if tensor is None:
        if head or name.endswith(COUNTERS):
            return None
        raise misfit(path, f"it has no {name}, of {tuple(own.shape)}")
    if tensor.shape != own.shape and tensor.dim() == own.dim():
        if head and tensor.shape[1:] == own.shape[1:]:
            return None  # another number of classes
        if name.endswith(POSITIONS) and own.dim() == 3 and len(tensor) == 1:
            tensor = resize_positions(tensor, own.shape[1])
    if tensor.shape != own.shape:
        shapes = f"{tuple(tensor.shape)} in the file and {tuple(own.shape)} in the network"
        raise misfit(path, f"{name} is {shapes}")
    if not tensor.isfinite().all():
        raise DataError(f"--weights {path}: {name} holds NaN or infinity")
    return tensor


def misfit(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"--weights {path} does not fit the network: {reason}")


def resize_positions(
    positions: Float[Tensor, "1 old width"], tokens: int
) -> Float[Tensor, "1 new width"] | Float[Tensor, "1 old width"]:
    """Resizes position embeddings of a square grid to another one, bilinear, corners on corners.

    The published code does the same (`scipy.ndimage.zoom`, order 1); timm leaves half a cell at
    the edges. Tokens before the grid, such as the class token, keep their embeddings. Positions
    are returned unchanged unless a square grid follows equally many tokens.
    """
    old, new = math.isqrt(positions.shape[1]), math.isqrt(tokens)
    before = tokens - new * new
    if positions.shape[1] - old * old != before:
        return positions
    head, grid = positions[:, :before].float(), positions[:, before:].float()
    grid = grid.view(1, old, old, -1).permute(0, 3, 1, 2)
    grid = interpolate(grid, (new, new), mode="bilinear", align_corners=True)
    return torch.cat([head, grid.flatten(2).transpose(1, 2)], 1)
