"""Average precision as COCO counts it, by pycocotools: of boxes, and of masks.

It is the mean over categories and over ten thresholds of the overlap, 0.5 to 0.95, of the precision
at 101 values of the recall; AP50 and AP75 are those of one threshold. A crowd counts neither
as an object nor as an error.
"""

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.base import Metric, Objective, Scorer
from atomo.workloads.detection.annotations import Annotations, Instance, Picture
from atomo.workloads.detection.coco import pycocotools
from atomo.workloads.detection.network import Detections

__all__ = ["DETECTION_METRICS", "AveragePrecisionScorer", "SummedLosses", "Truth"]

THRESHOLDS: Final[Mapping[str, slice]] = {
    "ap": slice(None),
    "ap50": slice(0, 1),
    "ap75": slice(5, 6),
}
DETECTION_METRICS: Final = (
    Metric("box_ap", "box AP", "box AP"),
    Metric("box_ap50", "AP50"),
    Metric("box_ap75", "AP75"),
    Metric("mask_ap", "mask AP"),
    Metric("mask_ap50", "AP50"),
    Metric("mask_ap75", "AP75"),
)
SOLID: Final = 0.5  # probability from which a point is of the object


@final
class SummedLosses(Objective):
    """The sum of a detector's losses, each with weight 1, as published."""

    def loss(self, outputs: Float[Tensor, " l"], targets: Tensor) -> Float[Tensor, ""]:
        return outputs.sum()

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns zero: in training a detector has no outputs but its losses."""
        return outputs.new_zeros(())


@final
class Truth:
    """A split as pycocotools has it. Ids count from 1: it takes an object of id 0 for none."""

    def __init__(self, annotations: Annotations) -> None:
        self.annotations = annotations

    def check(self, categories: Int64[Tensor, " n"]) -> None:
        """Raises DataError where the annotations have not these categories."""
        odd = sorted(set(categories.tolist()) - self.annotations.categories.keys())
        if odd:
            raise DataError(
                f"{self.annotations.source} has no category {odd[0]}, and the checkpoint does; "
                "evaluate it on annotations with the categories that it was trained with"
            )

    @cached_property
    def coco(self) -> Any:
        """Made once, for all checkpoints."""
        pictures = self.annotations.pictures
        objects = [
            annotation(place, picture, instance)
            for place, picture in enumerate(pictures, 1)
            for instance in picture.instances
        ]
        made = pycocotools("coco").COCO()
        made.dataset = {
            "images": [
                {"id": place, "height": instance.height, "width": instance.width}
                for place, instance in enumerate(pictures, 1)
            ],
            "annotations": [
                {"id": number} | instance for number, instance in enumerate(objects, 1)
            ],
            "categories": [{"id": number} for number in self.annotations.categories],
        }
        with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
            made.createIndex()
        return made


def annotation(place: int, picture: Picture, instance: Instance) -> dict[str, Any]:
    """Returns an object as pycocotools has it."""
    fields = {
        "image_id": place,
        "category_id": instance.category,
        "bbox": list(instance.box),
        "area": instance.area,
        "iscrowd": int(instance.crowd),
    }
    if instance.outline is not None:
        fields["segmentation"] = instance.outline.encoded(picture.height, picture.width)
    return fields


@final
class AveragePrecisionScorer(Scorer):
    """AP of boxes, and of masks where the detector and the annotations have them.

    There is no loss: in evaluation a detector has none.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._boxes: list[dict[str, Any]] = []
        self._masks: list[dict[str, Any]] = []
        self._masked = False

    def add(self, outputs: Detections, targets: Int64[Tensor, " b"]) -> None:
        self._truth.check(outputs.categories)
        places = targets.cpu().repeat_interleave(outputs.counts.cpu()).tolist()
        boxes = outputs.boxes.double().cpu()
        rows = zip(places, outputs.categories.tolist(), outputs.scores.tolist(), strict=True)
        named = [
            {"image_id": place + 1, "category_id": category, "score": score}
            for place, category, score in rows
        ]
        boxes[:, 2:] -= boxes[:, :2]
        pairs = zip(named, boxes.tolist(), strict=True)
        self._boxes += [detection | {"bbox": box} for detection, box in pairs]
        if outputs.masks is not None:
            self._masked = True
            self._masks += self._pasted(named, places, outputs.boxes, outputs.masks)

    def values(self) -> Mapping[str, float]:
        metrics = precisions("box", self._truth.coco, self._boxes, "bbox")
        if self._masked:
            metrics |= precisions("mask", self._truth.coco, self._masks, "segm")
        return metrics

    def _pasted(
        self,
        named: Sequence[dict[str, Any]],
        places: Sequence[int],
        boxes: Float[Tensor, "n 4"],
        masks: Float[Tensor, "n s s"],
    ) -> list[dict[str, Any]]:
        """Returns each mask on its image, in runs of pixels."""
        pictures = self._truth.annotations.pictures
        sizes = [(pictures[place].height, pictures[place].width) for place in places]
        rows = zip(named, boxes, masks, sizes, strict=True)
        return [
            detection | {"segmentation": paste_mask(box, mask, size)}
            for detection, box, mask, size in rows
        ]


def paste_mask(box: Float[Tensor, " 4"], mask: Float[Tensor, "s s"], size: tuple[int, int]) -> Any:
    """Returns a mask over its box, on an image of this size."""
    from torchvision.models.detection.roi_heads import paste_masks_in_image  # slow to import

    whole = paste_masks_in_image(mask[None, None], box[None], size)[0, 0] > SOLID
    return pycocotools("mask").encode(np.asfortranarray(whole.cpu().numpy().astype(np.uint8)))


def precisions(
    of: str, truth: Any, detections: list[dict[str, Any]], kind: str
) -> dict[str, float]:
    """Returns the metrics of some detections; NaN where there is nothing to be found."""
    with redirect_stdout(io.StringIO()):
        seen = truth.loadRes(detections) if detections else pycocotools("coco").COCO()
        counted = pycocotools("cocoeval").COCOeval(truth, seen, kind)
        counted.evaluate()
        counted.accumulate()
    # By threshold, recall, category, size and most detections of an image: all sizes, and 100.
    precision = counted.eval["precision"][..., 0, -1]
    return {f"{of}_{key}": mean(precision[places]) for key, places in THRESHOLDS.items()}


def mean(values: Any) -> float:
    """Returns the mean; -1 stands for a category that has nothing to be found."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else math.nan
