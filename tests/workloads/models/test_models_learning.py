"""Networks compute the functions of their papers, not only tensors of the right shapes."""

import pytest
import torch
from support.selection import slow_but
from torch import Tensor
from torch.nn import Conv2d, Dropout, Linear, Module
from torch.nn.functional import cross_entropy

from atomo.workloads.models import build_model
from atomo.workloads.models.cifar_resnet import Block


def batch(classes: int) -> tuple[Tensor, Tensor]:
    """Returns one image of coarse blocks a class."""
    blocks = torch.randn(classes, 3, 4, 4)
    return blocks.repeat_interleave(8, 2).repeat_interleave(8, 3), torch.arange(classes)


def without_dropout(network: Module) -> Module:
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.p = 0.0
    return network


def losses_of_steps(network: Module, steps: int, lr: float) -> list[float]:
    inputs, labels = batch(8)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(network(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


RATES = {"LeNet": 0.01, "FC": 0.01, "VGG11": 0.01, "ResNet20": 0.1, "ResNet56": 0.02}


@pytest.mark.long(
    cases=(
        "ResNet56",
        "VGG",
    )
)
@pytest.mark.slow(cases=("ResNet20",))
@pytest.mark.parametrize("name", slow_but(["LeNet", "FC", "ResNet20"], RATES))
def test_learns_a_batch_by_heart(name):
    torch.manual_seed(1)
    network = without_dropout(build_model(name, (3, 32, 32), 8))
    losses = losses_of_steps(network, 20, RATES[name])
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_a_cifar_resnet_has_as_many_layers_as_its_name_says(depth):
    network = build_model(f"ResNet{depth}", (3, 32, 32), 10)
    assert sum(isinstance(m, Conv2d | Linear) for m in network.modules()) == depth


def test_the_shortcut_is_option_a():
    x = torch.arange(2 * 4 * 4, dtype=torch.float32).view(1, 2, 4, 4)
    shortcut = Block(2, 6).shortcut(x)
    assert shortcut[:, :2].equal(x[:, :, ::2, ::2])
    assert not shortcut[:, 2:].any()
    assert shortcut.shape == (1, 6, 2, 2)


def test_a_block_without_growth_passes_its_input_on():
    block = Block(3, 3)
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 3, 5, 5)
    assert block(x).equal(x)


def test_he_weights_have_the_variance_of_the_paper():
    torch.manual_seed(1)
    network = build_model("ResNet18", (3, 32, 32), 10)
    weight = network.get_parameter("layer4.0.conv1.weight")  # 512 x 256 x 3 x 3
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
