"""Normalisation layers of detectors.

torchvision's detectors are published with batch norms that are frozen, because the few images of a
step estimate a distribution badly. This needs a trained network: with a wrong variance of 1, the
activations of random weights vanish or explode. So a
network that begins with random weights has trainable batch norms (as in torchvision), or group
norms, which do not depend on the number of images.

Wu and He, "Group Normalization", ECCV 2018.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.nn import BatchNorm2d, GroupNorm, Module, Parameter

__all__ = ["NORMS", "freeze", "renormalise"]

GROUPS: Final = 32


def frozen_norm(norm: BatchNorm2d) -> Module:
    """Returns the norm with constant statistics, scale and shift."""
    from torchvision.ops import FrozenBatchNorm2d  # slow to import

    made: Module = FrozenBatchNorm2d(norm.num_features, norm.eps)
    made.load_state_dict(norm.state_dict())
    return made


def group_norm(norm: BatchNorm2d) -> Module:
    """Returns a norm with statistics of groups of an image's own channels."""
    return GroupNorm(math.gcd(GROUPS, norm.num_features), norm.num_features, norm.eps)


NORMS: Final[Mapping[str, Callable[[BatchNorm2d], Module]]] = MappingProxyType(
    {"batch": lambda norm: norm, "group": group_norm, "frozen": frozen_norm}
)


def renormalise(model: Any, norm: str) -> None:
    """Replaces a detector's batch norms by these norms.

    Frozen norms go only into the backbone: the other layers, which have norms in the second
    versions of the detectors, begin with random weights.
    """
    place: Module = model.backbone.body if norm == "frozen" else model
    for part in list(place.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, BatchNorm2d):
                setattr(part, name, NORMS[norm](child))


def freeze(part: Module) -> None:
    """Makes all weights of a part constants: neither steps nor weight decay reach them."""
    for module in part.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, constant(parameter))


def constant(parameter: Parameter) -> torch.Tensor:
    return parameter.detach().clone()
