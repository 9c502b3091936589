"""Networks of torchvision, of timm and of one's own, by name."""

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.nn import Flatten, Linear, Module, Sequential
from workloads.training import trained

from atomo.errors import ConfigError
from atomo.launch.jobs.mpirun import evaluator_command
from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.evaluator import EvaluatorSettings, evaluate
from atomo.workloads import choose_workload
from atomo.workloads.models import build_model, network_named

SMALL = (3, 32, 32)


def plain(num_classes: int, input_shape: tuple[int, int, int]) -> Module:
    entries = torch.Size(input_shape).numel()
    return Sequential(Flatten(), Linear(entries, num_classes))


@pytest.fixture
def own_module(monkeypatch) -> Callable[[str, object], None]:
    """Puts something into a module that is called `mine`."""
    module = ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return lambda name, value: setattr(module, name, value)


@pytest.mark.slow
def test_a_network_of_torchvision_is_torchvisions():
    from torchvision import models

    torch.manual_seed(1)
    actual = build_model("torchvision:ShuffleNet-V2-x0-5", SMALL, 7)
    torch.manual_seed(1)
    reference = models.shufflenet_v2_x0_5(weights=None, num_classes=7)
    assert actual.training
    for name, tensor in reference.state_dict().items():
        assert torch.equal(actual.state_dict()[name], tensor), name


def test_a_network_of_timm_is_asked_for_without_weights(monkeypatch):
    requests: list[tuple[object, ...]] = []

    def create(name: str, pretrained: bool, num_classes: int, in_chans: int) -> Module:
        requests.append((name, pretrained, num_classes, in_chans))
        return plain(num_classes, (in_chans, 32, 32))

    timm = ModuleType("timm")
    timm.list_models, timm.create_model = lambda: ["vit_tiny", "mixer_b16"], create
    monkeypatch.setitem(sys.modules, "timm", timm)
    build_model("timm:vit_tiny", (1, 32, 32), 5)
    assert requests == [("vit_tiny", False, 5, 1)]
    with pytest.raises(ConfigError, match=r"unknown network 'timm:hf-hub:a/b'"):
        network_named("timm:hf-hub:a/b")  # which would be fetched


@pytest.mark.slow
def test_a_network_of_ones_own_trains_and_is_scored(own_module, tmp_path):
    own_module("net", plain)
    values = trained(tmp_path, network="mine:net", code="sgd", max_steps=30, batch_size=32)
    assert values["top1"] > 0.8


@pytest.mark.slow
def test_a_checkpoint_alone_has_no_module_imported(own_module, tmp_path):
    own_module("net", plain)
    with pytest.raises(ConfigError, match="if you trust it, give --network mine:net"):
        trained(tmp_path, network="mine:net", code="sgd", max_steps=2, trusted=False)
    assert (
        load(tmp_path / "run", latest(tmp_path / "run"), parts=()).config["network"] == "mine:net"
    )
    evaluate(EvaluatorSettings(tmp_path / "run", "mine:net", None, tmp_path), lambda result: None)
    assert "--network=mine:net" in evaluator_command(choose_workload(network="mine:net"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet19", "unknown network 'torchvision:resnet19'; did you mean 'resnet1"),
        ("torchvision:maskrcnn_resnet50_fpn", "list_models() lists all 80 that there are"),
        ("torchvison:resnet18", "cannot import 'torchvison' (No module named 'torchvison')"),
        ("mine:nett", "mine:nett: there is no such callable; did you mean 'net'? mine has 3"),
        ("mine:words", "mine:words: it is a str; mine has 3"),
        (":net", "cannot import ''"),
    ],
)
def test_what_there_is_not(own_module, name, message):
    for own in ("net", "other", "wrong"):
        own_module(own, plain)
    own_module("words", "words")
    with pytest.raises(ConfigError) as caught:
        network_named(name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda num_classes: Linear(9, num_classes), "does not take images of (3, 32, 32): "),
        (lambda: plain(6, SMALL), "makes (1, 6) of one image of (3, 32, 32); it must be scores of"),
        (lambda: "words", "made a str, not a torch.nn.Module"),
        (lambda width: None, "cannot be built for 5 classes: "),
    ],
)
def test_what_does_not_fit(own_module, build, message):
    own_module("net", build)
    with pytest.raises(ConfigError) as caught:
        build_model("mine:net", SMALL, 5)
    assert message in str(caught.value)


def test_looking_at_a_network_draws_nothing():
    torch.manual_seed(5)
    build_model("torchvision:shufflenet_v2_x0_5", SMALL, 3)
    after = torch.rand(3)
    from torchvision import models

    torch.manual_seed(5)
    models.shufflenet_v2_x0_5(weights=None, num_classes=3)
    assert torch.equal(after, torch.rand(3))


def test_without_timm_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ConfigError, match=r"networks of timm need the package timm .*-m pip install 'timm"
    ):
        network_named("timm:vit_tiny")
