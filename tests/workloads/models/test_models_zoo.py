"""Every listed network. A new one needs no new test here, only its published size."""

from collections import Counter

import pytest
import torch
from support.selection import long_but, slow_but
from torch.nn import BatchNorm2d, Dropout, Module
from torch.nn.functional import cross_entropy

from atomo.errors import ConfigError
from atomo.workloads.models import MODELS, build_model

MNIST, CIFAR, IMAGENET = (1, 28, 28), (3, 32, 32), (3, 224, 224)

# Parameters, as published or as the implementation that people compare with counts them.
SIZES = {
    ("LeNet", MNIST, 10): 431_080,
    ("FC", MNIST, 10): 784 * 800 + 800 + 800 * 500 + 500 + 500 * 10 + 10,
    ("FourConv", IMAGENET, 30): 954_718,
    ("AlexNet", CIFAR, 10): 23_272_266,
    ("AlexNet", IMAGENET, 1000): 61_100_840,
    ("VGG11", CIFAR, 10): 9_750_922,
    ("VGG13", CIFAR, 10): 9_935_434,
    ("VGG16", CIFAR, 10): 15_245_130,
    ("VGG19", CIFAR, 10): 20_554_826,
    ("VGG11_BN", CIFAR, 10): 9_756_426,
    ("VGG13_BN", CIFAR, 10): 9_941_322,
    ("VGG16_BN", CIFAR, 10): 15_253_578,
    ("VGG19_BN", CIFAR, 10): 20_565_834,
    ("VGG11", IMAGENET, 1000): 132_863_336,
    ("VGG16", IMAGENET, 1000): 138_357_544,
    ("VGG19_BN", IMAGENET, 1000): 143_678_248,
    ("ResNet18", CIFAR, 10): 11_173_962,
    ("ResNet34", CIFAR, 10): 21_282_122,
    ("ResNet50", CIFAR, 10): 23_520_842,
    ("ResNet101", CIFAR, 10): 42_512_970,
    ("ResNet152", CIFAR, 10): 58_156_618,
    ("ResNet18", IMAGENET, 1000): 11_689_512,
    ("ResNet34", IMAGENET, 1000): 21_797_672,
    ("ResNet50", IMAGENET, 1000): 25_557_032,
    ("ResNet101", IMAGENET, 1000): 44_549_160,
    ("ResNet152", IMAGENET, 1000): 60_192_808,
    ("ResNet20", CIFAR, 10): 269_722,
    ("ResNet32", CIFAR, 10): 464_154,
    ("ResNet44", CIFAR, 10): 658_586,
    ("ResNet56", CIFAR, 10): 853_018,
    ("ResNet110", CIFAR, 10): 1_727_962,
    ("DenseNet", CIFAR, 10): 769_162,
    ("DenseNet", IMAGENET, 1000): 7_978_856,
    ("ViT-Ti_16", IMAGENET, 1000): 5_717_416,
    ("ViT-S_16", IMAGENET, 1000): 22_050_664,
    ("ViT-B_16", IMAGENET, 1000): 86_567_656,
    ("ViT-B_32", IMAGENET, 1000): 88_224_232,
    ("ViT-L_16", IMAGENET, 1000): 304_326_632,
    ("Mixer-B_16", IMAGENET, 1000): 59_880_472,
    ("Mixer-L_16", IMAGENET, 1000): 208_196_168,
}

# The ones that one core trains a step of in about a second.
LIGHT = ["LeNet", "FC", "AlexNet", "VGG11", "VGG19_BN", "ResNet18", "ResNet20", "DenseNet"]

LIGHTEST = ["LeNet", "FC", "ResNet20", "DenseNet"]

every_model = pytest.mark.parametrize("name", long_but(LIGHT, MODELS))
light_model = pytest.mark.parametrize("name", slow_but(LIGHTEST, LIGHT))


def build_shapes_only(name: str, shape: tuple[int, int, int], classes: int) -> Module:
    with torch.device("meta"):
        return build_model(name, shape, classes)


def seeded(name: str, seed: int) -> Module:
    torch.manual_seed(seed)
    return build_model(name, MNIST, 10)


def images(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow(
    cases=(
        "DenseNet",
        "ResNet1",
    )
)
@pytest.mark.parametrize(("name", "shape", "classes"), SIZES)
def test_has_the_published_number_of_parameters(name, shape, classes):
    network = build_shapes_only(name, shape, classes)
    assert sum(p.numel() for p in network.parameters()) == SIZES[name, shape, classes]


def test_every_network_states_its_size():
    assert {name for name, _, _ in SIZES} == set(MODELS)


@pytest.mark.slow
@every_model
@pytest.mark.parametrize(
    "shape", long_but([MNIST, CIFAR], [MNIST, CIFAR, (2, 40, 35), (3, 130, 128)]), ids=str
)
def test_maps_images_to_a_logit_for_each_class(name, shape):
    if min(shape[1:]) < MODELS[name].smallest:
        with pytest.raises(ConfigError, match=f"{name}: input .* is too small; at least"):
            build_shapes_only(name, shape, 7)
        return
    network = build_shapes_only(name, shape, 7)
    assert network(torch.empty(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ["AlexNet", "VGG11_BN", "ResNet50", "DenseNet"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.slow
def test_maps_large_images_too(name, channels):
    network = build_shapes_only(name, (channels, 224, 224), 1000)
    assert network(torch.empty(2, channels, 224, 224, device="meta")).shape == (2, 1000)


@pytest.mark.long(cases=("(1, 28, 28)",))
@light_model
@pytest.mark.parametrize("shape", [MNIST, CIFAR], ids=str)
def test_each_parameter_gets_one_finite_gradient(name, shape):
    torch.manual_seed(1)
    network = build_model(name, shape, 10)
    calls = Counter()
    for key, parameter in network.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: calls.update([key]))
    cross_entropy(network(images((4, *shape))), torch.tensor([0, 1, 2, 3])).backward()
    gradients = {key: p.grad for key, p in network.named_parameters()}
    assert calls == Counter(gradients.keys())
    assert all(g.isfinite().all() and g.any() for g in gradients.values())


@pytest.mark.parametrize("name", ["AlexNet", "ResNet18", "DenseNet"])
@pytest.mark.slow
def test_the_large_layout_trains_from_gray_images(name):
    torch.manual_seed(1)
    network = build_model(name, (1, 128, 128), 4)
    cross_entropy(network(images((2, 1, 128, 128))), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())


@pytest.mark.slow(cases=("DenseNet",))
@every_model
def test_shares_no_parameter(name):
    network = build_shapes_only(name, CIFAR, 10)
    alone = [key for key, _ in network.named_parameters()]
    assert alone == [key for key, _ in network.named_parameters(remove_duplicate=False)]


@pytest.mark.slow(cases=("DenseNet",))
@light_model
def test_the_global_seed_decides_the_weights(name):
    first, same = (seeded(name, 5).state_dict() for _ in range(2))
    assert all(first[key].equal(same[key]) for key in first)
    second = dict(seeded(name, 6).named_parameters())
    assert not any(first[key].equal(p) for key, p in second.items() if p.dim() > 1)


@pytest.mark.slow(cases=("DenseNet",))
@light_model
def test_first_logits_neither_vanish_nor_explode(name):
    torch.manual_seed(1)
    network = build_model(name, CIFAR, 10).train()
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.eval()
    with torch.no_grad():
        spread = float(network(images((8, *CIFAR))).std())
    assert 0.03 < spread < 3


@light_model
def test_batch_normalisation_starts_as_the_identity(name):
    norms = [m for m in seeded(name, 1).modules() if isinstance(m, BatchNorm2d)]
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in norms)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "spelling"),
    [("resnet18", "ResNet18"), ("RESNET-18", "ResNet18"), ("vgg11bn", "VGG11_BN"), ("fc", "FC")],
)
def test_a_name_is_read_in_any_spelling(typed, spelling):
    meant_network = MODELS[spelling](CIFAR, 10)
    assert build_model(typed, CIFAR, 10).state_dict().keys() == meant_network.state_dict().keys()


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(
        ConfigError, match=r"'ResNet19'; did you mean 'ResNet18'\?.*LeNet.*VGG19_BN"
    ):
        build_model("ResNet19", CIFAR, 10)


def test_the_table_is_read_only():
    with pytest.raises(TypeError):
        MODELS["LeNet"] = MODELS["FC"]


@pytest.mark.slow
@every_model
def test_the_smallest_image_passes_and_a_smaller_one_is_refused(name):
    side = MODELS[name].smallest
    network = build_shapes_only(name, (3, side, side), 10)
    assert network(torch.empty(2, 3, side, side, device="meta")).shape == (2, 10)
    message = (
        rf"{name}: .*\(3, {side - 1}, 500\).*\(3, {side}, {side}\)" if side > 1 else "start at 1"
    )
    with pytest.raises(ConfigError, match=message):
        build_model(name, (3, side - 1, 500), 10)


@pytest.mark.parametrize("shape", [(0, 32, 32), (3, 0, 32), (3, 32, -1)])
def test_rejects_a_shape_that_no_image_has(shape):
    with pytest.raises(ConfigError, match="LeNet: input shape"):
        build_model("LeNet", shape, 10)


def test_rejects_a_network_without_classes():
    with pytest.raises(ConfigError, match="LeNet: 0 classes; at least 1"):
        build_model("LeNet", MNIST, 0)
