"""A detector of torchvision's as the loops call networks: tensors in, losses or detections out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import Module

from atomo.errors import DataError

__all__ = ["Detections", "Detector"]

Target = dict[str, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Detections:
    """Detections on some images, one image after the other, the surest first."""

    counts: Int64[Tensor, " b"]
    """Number of detections on each image."""
    boxes: Float[Tensor, "n 4"]
    """Left, top, right, bottom, in pixels of the image file."""
    scores: Float[Tensor, " n"]
    categories: Int64[Tensor, " n"]
    """The ids of the annotations."""
    masks: Float[Tensor, "n s s"] | None
    """Probability of each point of a grid over the box that it belongs to the object; None: the
    detector has no masks.
    """


@final
class Detector(Module):
    """Losses in training, and detections in evaluation, of a `GeneralizedRCNN`.

    It numbers categories from 1; which id each number stands for is kept with the weights.
    """

    category_ids: Tensor

    def __init__(self, model: Any, category_ids: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("category_ids", torch.tensor(category_ids))

    def forward(
        self,
        pixels: UInt8[Tensor, " p"],
        sizes: Int64[Tensor, "b 2"],
        counts: Int64[Tensor, " b"] | None = None,
        boxes: Float[Tensor, "n 4"] | None = None,
        categories: Int64[Tensor, " n"] | None = None,
        masks: UInt8[Tensor, " m"] | None = None,
    ) -> Float[Tensor, " l"] | Detections:
        """Returns the losses in training, in the order of their names; else the detections.

        Args:
            pixels: of all images, one after the other, each of 3 channels.
            sizes: their heights and widths.
            counts: the number of objects of each image. From here on, for training alone.
            boxes: of all objects.
            categories: their ids.
            masks: pixels of all objects' masks, 1 where the object is; empty: boxes alone.

        Raises:
            DataError: the network was not made for a category, or the network has masks
                to learn, and there are none.
        """
        shapes = [(3, *size) for size in sizes.tolist()]
        images = [image.float() / 255 for image in split_rows(pixels, shapes)]
        if not self.training:
            return self.detect_all(images)
        assert counts is not None and boxes is not None and categories is not None  # noqa: PT018
        labels = self.labels(categories)
        split = counts.tolist()
        pairs = zip(torch.split(boxes, split), torch.split(labels, split), strict=True)
        targets = [{"boxes": box, "labels": label} for box, label in pairs]
        if self.model.roi_heads.has_mask():
            add_masks(targets, masks, sizes)
        losses = self.model(images, targets)
        return torch.stack([losses[name].float() for name in sorted(losses)])

    def labels(self, categories: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        """Returns the numbers of categories, from 1: 0 is the background."""
        same = categories[:, None] == self.category_ids
        if not same.any(1).all():
            odd = int(categories[~same.any(1)][0])
            raise DataError(
                f"category {odd} is not among the {len(self.category_ids)} that the network was "
                "made for; give the annotations that it was trained with, or --resume never"
            )
        return same.int().argmax(1) + 1

    def detect_all(self, images: Sequence[Float[Tensor, "3 _ _"]]) -> Detections:
        """Detects the objects of each image separately: a batch would pad the image's edges."""
        detections = [self.detect(image) for image in images]
        masks = [objects["masks"][:, 0] for objects in detections if "masks" in objects]
        return Detections(
            torch.tensor([len(objects["boxes"]) for objects in detections]),
            torch.cat([objects["boxes"] for objects in detections]),
            torch.cat([objects["scores"] for objects in detections]),
            self.category_ids[torch.cat([objects["labels"] for objects in detections]) - 1],
            torch.cat(masks) if masks else None,
        )

    def detect(self, image: Float[Tensor, "3 h w"]) -> Target:
        """Runs the steps of the model except the last: masks stay on the grids of their boxes,
        because a hundred masks of the image's size take a hundred times the image's memory.
        """
        model = self.model
        scaled, _ = model.transform([image])
        features = model.backbone(scaled.tensors)
        proposals, _ = model.rpn(scaled, features)
        (objects,), _ = model.roi_heads(features, proposals, scaled.image_sizes)
        boxes = [{"boxes": objects["boxes"]}]
        size = (image.shape[1], image.shape[2])
        final: Target = model.transform.postprocess(boxes, scaled.image_sizes, [size])[0]
        return {**objects, **final}


def split_rows(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Splits a flat tensor into tensors of these shapes."""
    lengths = [torch.Size(shape).numel() for shape in shapes]
    return [
        part.view(shape) for part, shape in zip(torch.split(flat, lengths), shapes, strict=True)
    ]


def add_masks(targets: Sequence[Target], masks: Tensor | None, sizes: Tensor) -> None:
    """Gives each image the masks of its objects."""
    counts = [len(fields["boxes"]) for fields in targets]
    if sum(counts) and (masks is None or not len(masks)):
        raise DataError(
            "the network has masks to learn, and not every object of the annotations has a "
            "`segmentation`; give them one, or --network fasterrcnn_resnet50_fpn"
        )
    assert masks is not None
    shapes = [(n, *size) for n, size in zip(counts, sizes.tolist(), strict=True)]
    for target, own in zip(targets, split_rows(masks, shapes), strict=True):
        target["masks"] = own
