"""The networks, by name. To add one: write its builder, then list it in MODELS."""

from collections.abc import Mapping
from types import MappingProxyType

from torch.nn import Module

from atomo.models.alexnet import ALEXNET
from atomo.models.builder import Builder, Shape
from atomo.models.cifar_examples import CIFAR_EXAMPLES
from atomo.models.cifar_resnet import CIFAR_RESNETS
from atomo.models.densenet import DENSENET
from atomo.models.foreign import build_foreign, build_own, foreign_name, is_foreign, is_own, tried
from atomo.models.four_conv import FOUR_CONV
from atomo.models.lenet import LENET
from atomo.models.mixer import MIXERS
from atomo.models.perceptron import FC
from atomo.models.resnet import RESNETS
from atomo.models.vgg import VGGS
from atomo.models.vit import VITS
from atomo.models.weights import load_weights
from atomo.names import resolve

__all__ = [
    "CIFAR_EXAMPLES",
    "MODELS",
    "Builder",
    "Shape",
    "build_model",
    "build_own",
    "is_own",
    "load_weights",
    "network_named",
    "tried",
]

MODELS: Mapping[str, Builder] = MappingProxyType(
    {
        builder.name: builder
        for builder in (
            *(LENET, FC, FOUR_CONV, ALEXNET, *VGGS, *RESNETS, *CIFAR_RESNETS, DENSENET),
            *(*VITS, *MIXERS),
        )
    }
)

ALL: Mapping[str, Builder] = MappingProxyType({**MODELS, **CIFAR_EXAMPLES})


def build_model(name: str, input_shape: Shape, classes: int) -> Module:
    """Builds the network called `name`, in any case, for images of (channels, height, width).

    `torchvision:NAME`, `timm:NAME` and `module.path:callable` are those of other packages.

    It maps a batch of images to logits, one a class. The first weights come from torch's global
    generator: call `torch.manual_seed` before, and every process that does so builds the same.

    >>> sum(p.numel() for p in build_model("lenet", (1, 28, 28), 10).parameters())
    431080

    Raises:
        ConfigError: no network has this name, the images are too small for it, or `classes` is 0.
    """
    if is_foreign(name):
        return build_foreign(name, input_shape, classes)
    return ALL[resolve("network", name, ALL)](input_shape, classes)


def network_named(name: str) -> str:
    """The spelling of a network's name, ours or that of another package.

    >>> network_named("resnet-18"), network_named("torchvision:resnet18")
    ('ResNet18', 'torchvision:resnet18')

    Raises:
        ConfigError: there is no such network; the message offers the nearest.
    """
    return foreign_name(name) if is_foreign(name) else resolve("network", name, ALL)
