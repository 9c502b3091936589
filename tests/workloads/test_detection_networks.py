"""Detectors: torchvision's own, their norms, and weights of a classifier to begin with."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from support.selection import slow_but
from torch.nn import BatchNorm2d, GroupNorm
from torchvision.models import detection, resnet18
from torchvision.models.detection import backbone_utils
from torchvision.ops import FrozenBatchNorm2d
from workloads.shapes import write_shapes

from atomo.errors import ConfigError, DataError
from atomo.workloads import make_task
from atomo.workloads.detection.norms import renormalise
from atomo.workloads.detection.pretrained import backbone_stages, load_body, train_last
from atomo.workloads.detection.zoo import DETECTORS, DetectorSizes

IMAGE = torch.full((1, 3, 32, 32), 0.5)
RESIDUAL = partial(backbone_utils.resnet_fpn_backbone, backbone_name="resnet18")
MOBILE = partial(backbone_utils.mobilenet_backbone, backbone_name="mobilenet_v3_large", fpn=True)
KINDS = {kind.name: kind for kind in DETECTORS}


def on_nothing(name: str, frame: DetectorSizes):
    """Returns a network on the meta device: its weights have shapes and no values, so it is fast to
    make.
    """
    with torch.device("meta"):
        return KINDS[name].build(name, frame)


def shapes(model) -> dict[str, torch.Size]:
    return {name: module.shape for name, module in model.state_dict().items()}


@pytest.mark.parametrize(
    "name",
    slow_but({"maskrcnn_resnet50_fpn"}, ["maskrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn"]),
)
def test_they_are_torchvisions(name):
    actual = on_nothing(name, DetectorSizes(90, min_size=600))
    with torch.device("meta"):
        plain = getattr(detection, name)(weights=None, weights_backbone=None, min_size=600)
    assert shapes(actual) == shapes(plain)
    for module, expected in (
        (actual, plain),
        (actual.roi_heads, plain.roi_heads),
        (actual.rpn, plain.rpn),
    ):
        assert plainly(module) == plainly(expected)
    assert plainly(actual.transform) == plainly(plain.transform)


def plainly(part) -> dict[str, object]:
    """Returns the settings of a module."""
    kinds = int | float | bool | tuple | list | dict
    own = {name: value for name, value in vars(part).items() if isinstance(value, kinds)}
    return {name: value for name, value in own.items() if name not in ("_modules", "_buffers")}


@pytest.mark.parametrize("name", slow_but({"maskrcnn_resnet18_fpn"}, KINDS))
def test_each_has_masks_where_it_says_so(name):
    model = on_nothing(name, DetectorSizes(2, detections=7))
    assert model.roi_heads.has_mask() == KINDS[name].masks
    assert model.roi_heads.detections_per_img == 7


@pytest.mark.slow
def test_what_torchvision_builds_has_its_width():
    with pytest.raises(ConfigError, match=r"detection\(width=64\): .*_v2 has 256; leave it out"):
        on_nothing("maskrcnn_resnet50_fpn_v2", DetectorSizes(2, width=64))


@pytest.mark.parametrize(
    ("name", "numbers", "official"),
    [
        ("fasterrcnn_resnet18_fpn", [2, 1, 1, 1, 1], RESIDUAL),
        ("fasterrcnn_mobilenet_v3_large_320_fpn", [2, 2, 3, 6, 3, 1], MOBILE),
    ],
)
def test_stages_are_those_that_torchvision_freezes(name, numbers, official):
    model = on_nothing(name, DetectorSizes(2))
    modules = backbone_stages(model.backbone.body)
    assert [len(module) for module in modules] == numbers
    train_last(model.backbone.body, 3)
    body_size = sum(p.numel() for p in model.backbone.body.parameters())
    with torch.device("meta"):
        body = official(trainable_layers=3, norm_layer=BatchNorm2d, weights=None).body
    assert body_size == sum(p.numel() for p in body.parameters() if p.requires_grad)
    assert shapes(model.backbone.body) == shapes(body)


@pytest.mark.parametrize(("norm", "kind"), [("group", GroupNorm), ("frozen", FrozenBatchNorm2d)])
def test_norms_take_the_place_of_batch_norms(norm, kind):
    model = on_nothing("fasterrcnn_resnet18_fpn", DetectorSizes(2, width=8))
    with torch.device("meta"):
        renormalise(model, norm)
    modules = list(model.modules())
    assert sum(isinstance(module, kind) for module in modules) == 20
    assert not any(isinstance(module, BatchNorm2d) for module in modules)


@pytest.mark.slow
def test_what_begins_with_drawn_weights_is_never_frozen():
    model = on_nothing("fasterrcnn_resnet50_fpn_v2", DetectorSizes(2))
    with torch.device("meta"):
        renormalise(model, "frozen")
    assert not any(isinstance(module, BatchNorm2d) for module in model.backbone.body.modules())
    assert any(isinstance(module, BatchNorm2d) for module in model.backbone.fpn.modules())
    assert any(isinstance(module, BatchNorm2d) for module in model.roi_heads.modules())


@pytest.mark.slow
def test_a_classifiers_weights_are_begun_with_and_the_first_layers_stay(tmp_path):
    write_shapes(tmp_path / "coco", train=2, val=1)
    plain = resnet18()
    save_file(plain.state_dict(), tmp_path / "resnet18.safetensors")
    task = make_task("detection(width=8, backbone='resnet18.safetensors')")
    network = task.open("COCO", tmp_path).build("fasterrcnn_resnet18_fpn")
    body = network.model.backbone.body
    assert torch.equal(body.layer4[1].conv2.weight, plain.layer4[1].conv2.weight)
    assert isinstance(body.bn1, FrozenBatchNorm2d)
    trained = {name for name, _ in body.named_parameters()}
    assert {name.split(".")[0] for name in trained} == {"layer2", "layer3", "layer4"}
    features = plain.eval().layer1(plain.maxpool(plain.relu(plain.bn1(plain.conv1(IMAGE)))))
    torch.testing.assert_close(body(IMAGE)["0"], features)


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"a": torch.zeros(1)}, ConfigError, r"has no tensor 'conv1.weight' of \(64, 3, 7, 7\)"),
        ({"conv1.weight": torch.zeros(64, 1, 7, 7)}, ConfigError, r"'conv1.weight' is \(64, 1, 7"),
        ({"conv1.weight": torch.full((64, 3, 7, 7), torch.nan)}, DataError, "'conv1.weight' holds"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, tensors, error, message):
    body = on_nothing("fasterrcnn_resnet18_fpn", DetectorSizes(2)).backbone.body
    save_file(tensors, tmp_path / "weights")
    with pytest.raises(error, match=message):
        load_body(body, tmp_path / "weights")


def test_files_of_weights_that_are_none_are_named(tmp_path):
    body = on_nothing("fasterrcnn_resnet18_fpn", DetectorSizes(2)).backbone.body
    (tmp_path / "weights").write_bytes(b"\x80pickle")
    with pytest.raises(DataError, match=r"weights is no file of safetensors"):
        load_body(body, tmp_path / "weights")
    with pytest.raises(DataError, match=r"cannot read .*none"):
        load_body(body, tmp_path / "none")
    with pytest.raises(ConfigError, match=r"trainable_layers=6\): the backbone has 5"):
        train_last(body, 6)
