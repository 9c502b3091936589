"""The networks of the published CIFAR-100 examples that torchvision or timm has, for 32x32 pixels.

They were made for ImageNet. For small images the first layers do not reduce the resolution: the
first convolution is 3x3 with stride 1, and layers between it and the first block have stride 1.
Large images get the network of the package unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

import torch

from atomo.workloads.models.builder import Builder, Shape, is_large
from atomo.workloads.models.foreign import timm_model, torchvision_model

__all__ = ["CIFAR_EXAMPLES"]

SMALLEST: Final = 32  # pixels; in deeper networks a smaller image would shrink to nothing
DROPPED: Final = 0.5  # of the last block of stochastic depth: Huang et al., ECCV 2016
DEPTHS: Final = MappingProxyType({50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)})


@final
@dataclass(frozen=True)
class Stem:
    """Replacements for the layers before the first block of a network, by the paths of
    its modules.
    """

    first: str
    """The first convolution."""
    pools: Sequence[str] = ()
    """Poolings that small images do without."""
    strides: Sequence[str] = ()
    """Layers that do not stride over small images."""


RESNET: Final = Stem("conv1", ("maxpool",))


def fit_stem(
    make: Callable[[Shape, int], torch.nn.Module], stem: Stem, input_shape: Shape, classes: int
) -> torch.nn.Module:
    """Returns the network with a stem for these images."""
    network, large = make(input_shape, classes), is_large(input_shape)
    old: Any = network.get_submodule(stem.first)
    if not large or old.in_channels != input_shape[0]:
        network.set_submodule(stem.first, first_layer(old, input_shape[0], large))
    for path in () if large else stem.pools:
        network.set_submodule(path, torch.nn.Identity())
    for path in () if large else stem.strides:
        layer: Any = network.get_submodule(path)
        layer.stride = (1, 1)
    return network


def first_layer(old: torch.nn.Conv2d, channels: int, large: bool) -> torch.nn.Conv2d:
    """Returns the first convolution for images of so many channels; 3x3 with stride 1 for small
    images.
    """
    size, stride, padding = (old.kernel_size[0], old.stride[0], old.padding) if large else (3, 1, 1)
    layer = torch.nn.Conv2d(
        channels,
        old.out_channels,
        size,
        stride,
        padding,  # type: ignore[arg-type]  # a tuple of two
        bias=old.bias is not None,
    )
    torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def resnext(depths: tuple[int, ...], input_shape: Shape, classes: int) -> torch.nn.Module:
    """Builds a ResNeXt of 32 groups, 4 channels each: Xie et al., CVPR 2017."""
    from torchvision.models import resnet

    network: torch.nn.Module = resnet.ResNet(
        resnet.Bottleneck, list(depths), num_classes=classes, groups=32, width_per_group=4
    )
    return network


def of_torchvision(name: str) -> Callable[[Shape, int], torch.nn.Module]:
    return partial(torchvision_model, name)


def of_timm(name: str, drop_path: float = 0.0) -> Callable[[Shape, int], torch.nn.Module]:
    return partial(timm_model, name, drop_path=drop_path)


def table() -> dict[str, tuple[Callable[[Shape, int], torch.nn.Module], Stem]]:
    """Returns the builder of each network, and its stem."""
    dense = Stem("features.conv0", ("features.pool0",))
    sizes = (18, 34, 50, 101, 152)
    return {
        **{f"DenseNet{n}": (of_torchvision(f"densenet{n}"), dense) for n in (121, 161, 169, 201)},
        "GoogLeNet": (of_torchvision("googlenet"), Stem("conv1.conv", ("maxpool1",))),
        "InceptionV3": (
            of_torchvision("inception_v3"),
            Stem("Conv2d_1a_3x3.conv", ("maxpool1", "maxpool2")),
        ),
        "InceptionV4": (
            of_timm("inception_v4"),
            Stem(
                "features.0.conv",
                strides=[f"features.{part}" for part in
                         ("3.maxpool", "3.conv.conv", "5.conv.conv", "5.maxpool")],
            ),
        ),
        "InceptionResNetV2": (
            of_timm("inception_resnet_v2"),
            Stem("conv2d_1a.conv", ("maxpool_3a", "maxpool_5a")),
        ),
        "Xception": (of_timm("legacy_xception"), Stem("conv1")),
        "MobileNet": (of_timm("mobilenetv1_100"), Stem("conv_stem")),
        "MobileNetV2": (of_torchvision("mobilenet_v2"), Stem("features.0.0")),
        "ShuffleNetV2": (of_torchvision("shufflenet_v2_x1_0"), Stem("conv1.0", ("maxpool",))),
        "SqueezeNet": (of_torchvision("squeezenet1_0"), Stem("features.0")),
        **{f"ResNeXt{n}": (partial(resnext, depths), RESNET) for n, depths in DEPTHS.items()},
        **{
            f"PreActResNet{n}": (of_timm(f"resnetv2_{n}"), Stem("stem.conv", ("stem.pool",)))
            for n in sizes
        },
        **{f"SEResNet{n}": (of_timm(f"seresnet{n}"), RESNET) for n in sizes},
        **{f"StochasticDepth{n}": (of_timm(f"resnet{n}", DROPPED), RESNET) for n in sizes},
    }  # fmt: skip


CIFAR_EXAMPLES: Final[Mapping[str, Builder]] = MappingProxyType(
    {
        name: Builder(name, partial(fit_stem, make, stem), SMALLEST)
        for name, (make, stem) in table().items()
    }
)
