"""Detection of objects, and of their outlines."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, final

from torch.nn import Module

from atomo.core.names import nearest, resolve
from atomo.errors import ConfigError, DataError
from atomo.workloads.base import Metric, Task, Workload
from atomo.workloads.detection.annotations import Annotations, read_annotations
from atomo.workloads.detection.coco import pycocotools
from atomo.workloads.detection.layout import find_split
from atomo.workloads.detection.network import Detector
from atomo.workloads.detection.norms import NORMS, renormalise
from atomo.workloads.detection.precision import (
    DETECTION_METRICS,
    AveragePrecisionScorer,
    SummedLosses,
    Truth,
)
from atomo.workloads.detection.pretrained import load_body, train_last
from atomo.workloads.detection.samples import EvaluationPictures, TrainingPictures
from atomo.workloads.detection.zoo import DETECTORS, DetectorSizes

__all__ = ["Detection"]

COCO: Final = "COCO"
ANY: Final = "CocoFolder"
KINDS: Final = {kind.name: kind for kind in DETECTORS}
ELSEWHERE: Final = "torchvision:"  # as networks of images are called
RANGES: Final = {
    "min_size": (0, 8192),
    "max_size": (0, 8192),
    "width": (8, 4096),
    "regions": (1, 8192),
    "detections": (1, 1000),
    "trainable_layers": (0, 6),
}


@final
@dataclass(frozen=True)
class Detection(Task):
    """Boxes of objects, and masks: Faster R-CNN and Mask R-CNN on annotations like COCO's.

    Ren et al., "Faster R-CNN", NIPS 2015; He et al., "Mask R-CNN", ICCV 2017; Lin et al., "Feature
    Pyramid Networks", CVPR 2017.
    """

    min_size: int = 0
    """Pixels to which the shorter side of an image is brought; 0: the network's, mostly 800."""
    max_size: int = 0
    """Pixels that its longer side may have at most; 0: the network's, mostly 1333."""
    width: int = 256
    """Channels of the pyramid and the heads."""
    regions: int = 512
    """Regions of an image that the heads learn from at a step."""
    detections: int = 100
    """The most that are kept of an image; COCO's metrics look at no more than 100."""
    norm: str = ""
    """batch, group or frozen; empty: frozen with a `backbone`, else batch."""
    backbone: str = ""
    """Weights of the classifier that reads the image, safetensors, a path below --data-dir."""
    trainable_layers: int = 3
    """With a `backbone`: the number of its last layers that are trained."""

    id: ClassVar[str] = "detection"
    samples: ClassVar[str] = "images"
    metrics: ClassVar[tuple[Metric, ...]] = DETECTION_METRICS
    network: ClassVar[str] = DETECTORS[0].name
    dataset: ClassVar[str] = COCO
    scores_training: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                reason = f"{low} to {high}, got {getattr(self, name)}"
                raise ConfigError(f"detection: {name} must be {reason}")
        if self.norm and self.norm not in NORMS:
            raise ConfigError(f"detection: unknown norm {self.norm!r}; {nearest(self.norm, NORMS)}")
        if self.norm == "frozen" and not self.backbone:
            raise ConfigError(
                "detection(norm='frozen'): drawn weights do not learn with statistics that are not "
                "theirs; give a `backbone` that was trained, or norm='batch' or 'group'"
            )

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return (COCO, ANY)

    @classmethod
    def networks(cls) -> tuple[str, ...]:
        return tuple(KINDS)

    def network_named(self, name: str) -> str:
        return resolve("network", name.removeprefix(ELSEWHERE), KINDS)

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        if image_size:
            raise ConfigError(
                f"--image-size {image_size}: detectors scale images themselves, each by its shorter"
                f" side; --task 'detection(min_size={image_size}, max_size={2 * image_size})'"
            )
        pycocotools("mask")  # raises now, not at the first batch, if it is not installed
        root = data_dir / "coco" if self.dataset_named(dataset) == COCO else data_dir
        train, val = find_split(root, "train"), find_split(root, "val")
        seen = read_annotations(val.annotations)
        truth = Truth(seen)
        return Workload(
            # It is large, and an evaluator has no use for it.
            TrainingPictures(partial(match_categories, seen, train.annotations), train.images),
            EvaluationPictures(seen, val.images),
            lambda name: self._build(name, seen, data_dir),
            SummedLosses(),
            lambda: AveragePrecisionScorer(truth),
            eval_batch_size=8,
        )

    def _build(self, name: str, seen: Annotations, data_dir: Path) -> Module:
        kind = KINDS[self.network_named(name)]
        bare = seen.unoutlined if kind.masks else None
        if bare is not None:
            raise DataError(
                f"{seen.source}, annotation {bare.id}: there is no segmentation, and "
                f"{kind.name} learns masks; give it one, or --network fasterrcnn_resnet50_fpn"
            )
        sizes = self.min_size, self.max_size, self.regions, self.detections, self.width
        model: Any = kind.build(kind.name, DetectorSizes(len(seen.categories), *sizes))
        renormalise(model, self.norm or ("frozen" if self.backbone else "batch"))
        if self.backbone:
            load_body(model.backbone.body, data_dir / self.backbone)
            train_last(model.backbone.body, self.trainable_layers)
        return Detector(model, list(seen.categories))


def match_categories(seen: Annotations, path: Path) -> Annotations:
    """Reads the annotations to train on, and checks their categories against the evaluation's.

    Raises:
        DataError: they have other categories.
    """
    shown = read_annotations(path)
    odd = sorted(set(shown.categories.items()) ^ set(seen.categories.items()))
    if odd:
        number, name = odd[0]
        raise DataError(
            f"{path} and {seen.source}: category {number} ({name!r}) is not the same in both; list "
            "equal categories in both, also those that one has no object of"
        )
    return shown
