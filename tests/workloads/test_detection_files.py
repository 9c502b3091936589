"""Annotation files: valid ones, and the errors for invalid ones."""

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as official
from workloads.shapes import write_shapes

from atomo.core.distribution import install_command
from atomo.errors import ConfigError, DataError
from atomo.workloads import make_task
from atomo.workloads.detection.annotations import read_annotations
from atomo.workloads.detection.outlines import mask_of, read_outline

GOOD = {
    "images": [{"id": 4, "file_name": "a.png", "height": 10, "width": 20}],
    "annotations": [
        {
            "id": 17,
            "image_id": 4,
            "category_id": 1,
            "bbox": [1, 2, 3, 4],
            "segmentation": [[1, 2, 4, 2, 4, 6]],
        }
    ],
    "categories": [{"id": 1, "name": "disc"}],
}


def written(tmp_path, whole) -> object:
    path = tmp_path / "instances_train.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    return path


@pytest.fixture
def folder(tmp_path):
    write_shapes(tmp_path / "coco", train=2, val=1)
    return tmp_path


def opened(folder, dataset: str = "COCO"):
    return make_task("detection(width=8)").open(dataset, folder)


def test_what_is_not_said_is_taken_from_the_box(tmp_path):
    (picture,) = read_annotations(written(tmp_path, GOOD)).pictures
    (instance,) = picture.instances
    assert (instance.id, instance.category, instance.area, instance.crowd) == (17, 1, 12.0, False)


@pytest.mark.parametrize(
    "content",
    [
        [[2.5, 1.0, 17.2, 3.1, 9.9, 8.8], [0, 0, 3, 0, 3, 3, 0, 3]],
        {"size": [10, 20], "counts": [25, 5, 30, 7, 133]},
        {"size": [10, 20], "counts": "compressed"},
    ],
)
def test_outlines_are_what_pycocotools_reads(content):
    if isinstance(content, dict) and content["counts"] == "compressed":
        runs = {"size": [10, 20], "counts": [0, 40, 3, 60, 70, 1, 26]}
        content = {**content, "counts": official.frPyObjects(runs, 10, 20)["counts"].decode()}
        expected = official.area({**content, "counts": content["counts"].encode()})
    else:
        encoded = official.frPyObjects(content, 10, 20)
        encoded = official.merge(encoded) if isinstance(encoded, list) else encoded
        expected = official.area(encoded)
    mask = mask_of(read_outline(content, 10, 20), 10, 20)
    assert mask.shape == (10, 20)
    assert 0 < mask.sum() == expected
    again = official.encode(np.asfortranarray(mask))
    assert official.area(again) == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bbox": [1, 2, 3]}, "bbox is [1, 2, 3]; must be [left, top, width, height]"),
        ({"bbox": [1, 2, -3, 4]}, "bbox is [1.0, 2.0, -3.0, 4.0]; must be"),
        ({"bbox": [1, 2, float("nan"), 4]}, "bbox is [1, 2, nan, 4]; must be"),
        ({"bbox": [1, 2, "3", 4]}, "must be [left, top, width, height]"),
        ({"bbox": None}, "bbox is missing"),
        ({"image_id": 5}, "image_id is 5, which the file does not list; remove it"),
        ({"category_id": 2}, "category_id is 2, which the file does not list"),
        ({"category_id": True}, "category_id is True; must be a whole number"),
        ({"iscrowd": 2}, "iscrowd is 2; must be a whole number, 0 to 1"),
        ({"area": -1}, "area is -1; must be a finite number, 0 or more"),
        ({"area": float("inf")}, "area is inf; must be a finite number"),
        ({"segmentation": "all"}, "segmentation must be a list of polygons"),
        (
            {"segmentation": [[1, 2, 3, 4]]},
            "segmentation has a polygon of 4 numbers; must be x and",
        ),
        ({"segmentation": [[1, 2, 3, 4, 5]]}, "segmentation has a polygon of 5 numbers"),
        ({"segmentation": [1, 2, 3, 4, 5, 6]}, "has a polygon that is no list of numbers"),
        ({"segmentation": [["a", 1, 2, 3, 4, 5]]}, "has a polygon that is no list of numbers"),
        ({"segmentation": [[1, 2, 3, 4, 5, 1e9]]}, "has a corner that is not within 65536"),
        ({"segmentation": [[1, 2, 3, float("nan"), 5, 6]]}, "has a corner that is not within"),
        ({"segmentation": {"size": [9, 9], "counts": [81]}}, "runs for [h, w] = [9, 9], and the"),
        ({"segmentation": {"size": [10, 20], "counts": [201]}}, "counts that do not add up to 10"),
        ({"segmentation": {"size": [10, 20], "counts": [-1, 201]}}, "counts that do not add up"),
        ({"segmentation": {"size": [10, 20], "counts": "\x00"}}, "counts with the character"),
        ({"segmentation": {"size": [10, 20], "counts": "o" * 99}}, "too long a number"),
    ],
)
def test_a_bad_annotation_is_named(tmp_path, change, message):
    bad = GOOD | {"annotations": [GOOD["annotations"][0] | change]}
    with pytest.raises(DataError) as caught:
        read_annotations(written(tmp_path, bad))
    assert str(caught.value).startswith(f"{tmp_path}/instances_train.json, annotation 17: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ("", "is no JSON"),
        ('{"images": [}', "is no JSON"),
        ("\ud7ff" + '{"a":', "is no JSON"),
        ("[" * 200_000, "is no JSON: lists in lists too deep"),
        ([1], "has no list 'images'"),
        (GOOD | {"annotations": {}}, "has no list 'annotations'; COCO's files of instances have"),
        (GOOD | {"categories": []}, "the list 'categories' is empty"),
        (GOOD | {"images": [], "annotations": []}, "the list 'images' is empty"),
        (GOOD | {"images": [3]}, "image number 1: 3 is no object"),
        (GOOD | {"annotations": [{"image_id": 4}]}, "annotation number 1: id is missing"),
        (GOOD | {"annotations": GOOD["annotations"] * 2}, "annotation 17: the id is there twice"),
        (GOOD | {"images": [GOOD["images"][0] | {"height": 0}]}, "image 4: height is 0; must be a"),
        (GOOD | {"images": [GOOD["images"][0] | {"file_name": "../a"}]}, "image 4: file_name is"),
        (GOOD | {"images": [GOOD["images"][0] | {"file_name": "/a"}]}, "path within the folder"),
        (GOOD | {"categories": [{"id": 2**40, "name": "a"}]}, f"category {2**40}: id is {2**40}"),
        (GOOD | {"categories": [{"id": 1}]}, "category 1: name is missing; must be a text"),
    ],
)
def test_a_bad_file_is_named(tmp_path, whole, message):
    with pytest.raises(DataError) as caught:
        read_annotations(written(tmp_path, whole))
    assert f"{tmp_path}/instances_train.json" in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train2017", "images/train2017"),
        ("annotations/instances_train2017.json", "annotations/instances_train.json"),
        ("train2017", "train"),
    ],
)
def test_layouts_that_are_found(folder, old, new):
    target = folder / "coco" / new
    target.parent.mkdir(exist_ok=True)
    if new.endswith("train.json"):
        (folder / "coco/train2017").rename(folder / "coco/train")
    (folder / "coco" / old).rename(target)
    assert len(opened(folder).train.batch(torch.arange(2))) == 2
    assert len(opened(folder / "coco", "CocoFolder").test) == 1


def test_what_is_not_there_is_drawn(folder):
    (folder / "coco/train2017/000000000002.png").unlink()
    with pytest.raises(DataError, match=r"cannot read image .*train2017/000000000002\.png"):
        opened(folder).train.batch(torch.tensor([1]))
    (folder / "coco/val2017").rename(folder / "elsewhere")
    with pytest.raises(DataError, match=r"no folder of the images of instances_val2017\.json; t"):
        opened(folder)
    (folder / "coco/annotations/instances_val.json").write_text("")
    with pytest.raises(DataError, match="two files of the split 'val'; leave one there"):
        opened(folder)
    with pytest.raises(DataError, match=r"no annotations of its split 'train'; expected annotat"):
        opened(folder, "CocoFolder")


def test_images_and_annotations_that_do_not_fit_each_other(folder):
    Image.new("RGB", (9, 8)).save(folder / "coco/train2017/000000000001.png")
    with pytest.raises(DataError, match=r"1\.png is 8 high and 9 wide, and image 1 in .*train2017"):
        opened(folder).train.batch(torch.tensor([0]))
    path = folder / "coco/annotations/instances_train2017.json"
    whole = json.loads(path.read_text())
    whole["categories"][0]["name"] = "ball"
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError, match=r"category 18 \('ball'\) is not the same in both"):
        len(opened(folder).train)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"annotations": []}))


def test_masks_need_outlines(folder):
    for split in ("train", "val"):
        path = folder / f"coco/annotations/instances_{split}2017.json"
        whole = json.loads(path.read_text())
        whole["annotations"][0]["segmentation"] = []
        path.write_text(json.dumps(whole))
    work = opened(folder)
    assert not len(work.train.batch(torch.arange(2)).inputs[-1])
    with pytest.raises(DataError, match=r"val2017\.json, annotation 100: there is no segmentation"):
        work.build("maskrcnn_resnet18_fpn")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("detection(width=4)", "width must be 8 to 4096, got 4"),
        ("detection(norm='layer')", "unknown norm 'layer'; known: batch, group, frozen"),
        ("detection(norm='frozen')", "drawn weights do not learn with statistics that are not"),
    ],
)
def test_settings_that_are_not(spec, message):
    with pytest.raises(ConfigError) as caught:
        make_task(spec)
    assert message in str(caught.value)


def test_the_extra_and_the_size_are_told(folder, monkeypatch):
    with pytest.raises(ConfigError, match=r"--task 'detection\(min_size=96, max_size=192\)'"):
        make_task("detection").open("COCO", folder, 96)
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("detection"))):
        opened(folder)
