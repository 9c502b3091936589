"""Detectors by torchvision's names: two families, each on several networks that read the image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from torch.nn import BatchNorm2d, Module

from atomo.errors import ConfigError

__all__ = ["DETECTORS", "DetectorKind", "DetectorSizes"]

WIDTH: Final = 256  # channels of the published networks
MEDIUM: Final = 4  # times as many units of the box head


@final
@dataclass(frozen=True)
class DetectorSizes:
    """Sizes of a detector's images and boxes; 0: the network's own."""

    categories: int
    min_size: int = 0
    """Pixels to which the shorter side of an image is brought."""
    max_size: int = 0
    """Pixels that its longer side may have at most."""
    regions: int = 512
    """Regions of an image that the heads learn from at a step."""
    detections: int = 100
    """The most of an image."""
    width: int = WIDTH
    """Channels of the pyramid and the heads."""

    @property
    def classes(self) -> int:
        """The categories, and the background."""
        return self.categories + 1

    def arguments(self) -> dict[str, Any]:
        """Arguments that all of torchvision's detectors take."""
        sizes = {"min_size": self.min_size, "max_size": self.max_size}
        return {name: value for name, value in sizes.items() if value} | {
            "box_batch_size_per_image": self.regions,
            "box_detections_per_img": self.detections,
        }


@final
@dataclass(frozen=True)
class DetectorKind:
    """One detector."""

    name: str
    masks: bool
    build: Callable[[str, DetectorSizes], Module]


def torchvision_detector(name: str, frame: DetectorSizes) -> Module:
    """Builds torchvision's detector of this name, with random weights."""
    from torchvision.models import detection  # slow to import

    if frame.width != WIDTH:
        raise ConfigError(f"detection(width={frame.width}): {name} has {WIDTH}; leave it out")
    build = getattr(detection, name)
    model: Module = build(
        weights=None, weights_backbone=None, num_classes=frame.classes, **frame.arguments()
    )
    return model


def pyramid(name: str, width: int) -> Module:
    """Returns a residual network, and a pyramid of its features of so many channels."""
    from torchvision.models import resnet
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

    body = getattr(resnet, name)(weights=None, norm_layer=BatchNorm2d)
    layers = {f"layer{number}": str(number - 1) for number in (1, 2, 3, 4)}
    channels = [body.inplanes // 8 * 2**power for power in range(4)]
    made: Module = BackboneWithFPN(body, layers, channels, width, LastLevelMaxPool())
    return made


def build_faster_rcnn(name: str, frame: DetectorSizes) -> Module:
    """Builds Faster R-CNN on a residual network with a pyramid; at 256 channels, torchvision's."""
    from torchvision.models.detection.faster_rcnn import FasterRCNN

    built: Module = FasterRCNN(
        pyramid(name.split("_")[1], frame.width), **box_head(frame), **frame.arguments()
    )
    return built


def box_head(frame: DetectorSizes) -> dict[str, Module]:
    """Builds the head that predicts the category and the box of a region."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead

    units = MEDIUM * frame.width
    return {
        "box_head": TwoMLPHead(frame.width * 7 * 7, units),
        "box_predictor": FastRCNNPredictor(units, frame.classes),
    }


def build_mask_rcnn(name: str, frame: DetectorSizes) -> Module:
    """Builds Mask R-CNN likewise."""
    from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor

    width = frame.width
    built: Module = MaskRCNN(
        pyramid(name.split("_")[1], width),
        mask_head=MaskRCNNHeads(width, (width,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(width, width, frame.classes),
        **box_head(frame),
        **frame.arguments(),
    )
    return built


RESIDUAL: Final = ("resnet50", "resnet18", "resnet34", "resnet101")
DETECTORS: Final = (
    *(DetectorKind(f"maskrcnn_{backbone}_fpn", True, build_mask_rcnn) for backbone in RESIDUAL),
    *(
        DetectorKind(f"fasterrcnn_{backbone}_fpn", False, build_faster_rcnn)
        for backbone in RESIDUAL
    ),
    DetectorKind("maskrcnn_resnet50_fpn_v2", True, torchvision_detector),
    DetectorKind("fasterrcnn_resnet50_fpn_v2", False, torchvision_detector),
    DetectorKind("fasterrcnn_mobilenet_v3_large_fpn", False, torchvision_detector),
    DetectorKind("fasterrcnn_mobilenet_v3_large_320_fpn", False, torchvision_detector),
)
