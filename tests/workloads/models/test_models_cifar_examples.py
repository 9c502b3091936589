"""The networks of the published CIFAR-100 examples, with the stem for small images."""

from pathlib import Path

import pytest
import torch
from support.selection import slow_but
from torch.nn import Identity, Module

from atomo.errors import ConfigError
from atomo.workloads.models import CIFAR_EXAMPLES, MODELS, build_model, network_named

CIFAR = (3, 32, 32)
PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
# With 100 classes; the examples publish 7.0, 6.2, 22.3, 2.36, 1.3, 0.78 and 3.3, 41.3, 21.0, 11.3,
# 11.4, 11.22 million.
TORCHVISION = {
    "DenseNet121": 7_048_676,
    "GoogLeNet": 5_694_724,
    "InceptionV3": 21_990_468,
    "MobileNetV2": 2_351_972,
    "ShuffleNetV2": 1_356_104,
    "SqueezeNet": 775_204,
    "ResNeXt50": 23_177_124,
}
TIMM = {
    "MobileNet": 3_309_476,
    "InceptionV4": 41_296_516,
    "InceptionResNetV2": 54_460_164,
    "Xception": 21_011_852,
    "PreActResNet18": 11_218_340,
    "SEResNet18": 11_310_244,
    "StochasticDepth18": 11_220_132,
}


def with_timm() -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install '.[timm]'")


def shapes_only(name: str, shape: tuple[int, int, int] = CIFAR) -> Module:
    with torch.device("meta"):
        return build_model(name, shape, 100)


def parameters(network: Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.long(
    cases=(
        "DenseNet121",
        "InceptionResNetV2",
        "InceptionV4",
        "Xception",
    )
)
@pytest.mark.parametrize("name", slow_but(["ShuffleNetV2", "SqueezeNet"], [*TORCHVISION, *TIMM]))
def test_maps_small_images_to_scores_with_as_many_parameters_as_published(name):
    if name in TIMM:
        with_timm()
    network = shapes_only(name.lower())
    assert parameters(network) == (TORCHVISION | TIMM)[name]
    assert network(torch.empty(2, *CIFAR, device="meta")).shape == (2, 100)


def test_grey_images_and_large_ones_have_their_own_first_layers():
    assert shapes_only("ShuffleNetV2", (1, 40, 32)).conv1[0].in_channels == 1
    assert isinstance(shapes_only("ShuffleNetV2").maxpool, Identity)
    large = shapes_only("ShuffleNetV2", (1, 224, 224))
    assert (large.conv1[0].in_channels, large.conv1[0].stride) == (1, (2, 2))
    assert parameters(shapes_only("SqueezeNet", (3, 224, 224))) == 786_724  # torchvision's


def test_a_step_reaches_every_parameter():
    torch.manual_seed(1)
    network = build_model("ShuffleNetV2", CIFAR, 5)
    network(torch.randn(2, *CIFAR)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.slow
def test_stochastic_depth_leaves_out_half_of_the_last_block():
    with_timm()
    network = shapes_only("StochasticDepth18")
    rates = [part.drop_prob for part in network.modules() if type(part).__name__ == "DropPath"]
    assert rates == pytest.approx([i / 14 for i in range(1, 8)])


def test_names_are_those_of_the_page_and_none_hides_another():
    words = PAGE.read_text()
    assert all(f"`{name}`" in words for name in CIFAR_EXAMPLES)
    assert not CIFAR_EXAMPLES.keys() & MODELS.keys()
    assert {*TORCHVISION, *TIMM} <= CIFAR_EXAMPLES.keys()
    assert network_named("inception-v3") == "InceptionV3"
    with pytest.raises(ConfigError, match="did you mean 'ShuffleNetV2'"):
        network_named("shufflenet3")
    with pytest.raises(ConfigError, match=r"SqueezeNet: .*\(3, 16, 16\) is too small"):
        build_model("SqueezeNet", (3, 16, 16), 10)
