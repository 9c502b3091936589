"""Average precision of detections, compared with pycocotools and with results by hand."""

import io
import json
import math
from contextlib import redirect_stdout

import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from workloads.shapes import write_shapes

from atomo.errors import DataError
from atomo.workloads.detection.annotations import read_annotations
from atomo.workloads.detection.network import Detections
from atomo.workloads.detection.outlines import mask_of
from atomo.workloads.detection.precision import AveragePrecisionScorer, Truth

GRID = 28


@pytest.fixture
def path(tmp_path):
    """Returns a file with an annotation of id 0, which pycocotools takes for none, and with a
    crowd.
    """
    write_shapes(tmp_path, train=1, val=6)
    path = tmp_path / "annotations/instances_val2017.json"
    whole = json.loads(path.read_text())
    whole["annotations"][0]["iscrowd"] = 1
    whole["annotations"][1]["id"] = 0
    path.write_text(json.dumps(whole))
    return path


def found_as_annotated(annotations, shift: float = 0.0, crowds: bool = False) -> list[Detections]:
    """Returns detections equal to the annotations, moved to the right by `shift` pixels."""
    detections = []
    for picture in annotations.pictures:
        own = [instance for instance in picture.instances if crowds or not instance.crowd]
        boxes = torch.tensor([instance.box for instance in own]).view(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        boxes[:, 0::2] += shift
        masks = [grid(instance, picture) for instance in own]
        detections.append(
            Detections(
                torch.tensor([len(own)]),
                boxes,
                torch.linspace(0.9, 0.6, len(own)),
                torch.tensor([instance.category for instance in own], dtype=torch.int64),
                torch.stack(masks) if masks else torch.zeros(0, GRID, GRID),
            )
        )
    return detections


def grid(instance, picture) -> torch.Tensor:
    """Returns the mask of an object on a grid over its box."""
    whole = torch.from_numpy(mask_of(instance.outline, picture.height, picture.width).copy())
    left, top, width, height = instance.box
    steps = (torch.arange(GRID) + 0.5) / GRID
    rows = (top + steps * height).long().clamp_max(picture.height - 1)
    columns = (left + steps * width).long().clamp_max(picture.width - 1)
    return whole[rows][:, columns].float()


def scored(annotations, detections, masks: bool = True) -> dict[str, float]:
    scorer = AveragePrecisionScorer(Truth(annotations))
    for place, image in enumerate(detections):
        bare = Detections(image.counts, image.boxes, image.scores, image.categories, None)
        scorer.add(image if masks else bare, torch.tensor([place]))
    return dict(scorer.values())


def test_what_is_annotated_is_found_whole(path):
    annotations = read_annotations(path)
    values = scored(annotations, found_as_annotated(annotations))
    assert [values[f"box_{key}"] for key in ("ap", "ap50", "ap75")] == pytest.approx([1, 1, 1])
    assert values["mask_ap50"] == pytest.approx(1)
    assert values["mask_ap75"] == pytest.approx(1)
    # A crowd that is found is not wrong either.
    crowded = scored(annotations, found_as_annotated(annotations, crowds=True))
    assert crowded["box_ap"] == pytest.approx(1)
    without = scored(annotations, found_as_annotated(annotations), masks=False)
    assert set(without) == {"box_ap", "box_ap50", "box_ap75"}


def test_boxes_beside_their_place_count_as_pycocotools_counts_them(path):
    annotations = read_annotations(path)
    detections = found_as_annotated(annotations, shift=6.0)
    values = scored(annotations, detections)
    whole = json.loads(path.read_text())
    for number, instance in enumerate(whole["annotations"], 1):
        instance["id"] = number
    path.write_text(json.dumps(whole))
    rows = [
        {"image_id": place, "category_id": category, "score": score, "bbox": [a, b, c - a, d - b]}
        for place, image in enumerate(detections, 1)
        for (a, b, c, d), category, score in zip(
            image.boxes.tolist(),
            image.categories.tolist(),
            image.scores.tolist(),
            strict=True,
        )
    ]
    with redirect_stdout(io.StringIO()):
        truth = COCO(str(path))
        plain = COCOeval(truth, truth.loadRes(rows), "bbox")
        plain.evaluate()
        plain.accumulate()
        plain.summarize()
    assert 0 < plain.stats[0] < 1
    averages = [values[key] for key in ("box_ap", "box_ap50", "box_ap75")]
    assert averages == pytest.approx(list(plain.stats[:3]))


def test_categories_of_other_annotations_are_named(path):
    annotations = read_annotations(path)
    detections = found_as_annotated(annotations)[1]
    unknown = Detections(
        detections.counts, detections.boxes, detections.scores, detections.categories * 0 + 7, None
    )
    with pytest.raises(DataError, match="has no category 7, and the checkpoint does"):
        AveragePrecisionScorer(Truth(annotations)).add(unknown, torch.tensor([0]))


def test_nothing_found_and_nothing_to_be_found(path):
    annotations = read_annotations(path)
    none = Detections(
        torch.zeros(6, dtype=torch.int64),
        torch.zeros(0, 4),
        torch.zeros(0),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(0, GRID, GRID),
    )
    scorer = AveragePrecisionScorer(Truth(annotations))
    scorer.add(none, torch.arange(6))
    assert set(scorer.values().values()) == {0.0}
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"annotations": []}))
    scorer = AveragePrecisionScorer(Truth(read_annotations(path)))
    scorer.add(none, torch.arange(6))
    assert all(map(math.isnan, scorer.values().values()))
