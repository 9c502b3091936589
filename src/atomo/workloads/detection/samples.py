"""Batches of images of unequal sizes, with their objects.

Training uses the same images and objects as torchvision's reference: crowds are left out, boxes
end at the image's edges, and boxes without an extent are dropped. Images without annotations are
left out of training, but not of the evaluation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.base import Batch, Samples
from atomo.workloads.datasets.hashing import uniforms
from atomo.workloads.datasets.photographs.files import decode_image
from atomo.workloads.detection.annotations import Annotations, Instance, Picture
from atomo.workloads.detection.outlines import mask_of

__all__ = ["EvaluationPictures", "TrainingPictures", "has_extent"]


@final
@dataclass(frozen=True, eq=False)
class EvaluationPictures(Samples):
    """A split to evaluate on: pixels alone.

    A batch's inputs are the pixels of all its images, one after the other, and their sizes (height,
    width); its targets are the images' places in the annotations.
    """

    annotations: Annotations
    folder: Path

    def __len__(self) -> int:
        return len(self.annotations.pictures)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        chosen = [self.annotations.pictures[index] for index in indices.tolist()]
        images = [read_picture(self.folder, self.annotations.source, picture) for picture in chosen]
        return Batch(pack_images(images), indices)


@final
@dataclass(frozen=True, eq=False)
class TrainingPictures(Samples):
    """A split to train on: pixels and objects. The annotations are read on first use.

    After the pixels and the sizes, a batch's inputs are the number of objects of each image, and of
    all objects, one image after the other, the boxes (left, top, right, bottom), the ids of their
    categories, and the pixels of their masks. There are no masks where the file does not outline
    every object.
    """

    read: Callable[[], Annotations]
    folder: Path

    @cached_property
    def annotations(self) -> Annotations:
        """All annotations of the file."""
        return self.read()

    @cached_property
    def pictures(self) -> Sequence[Picture]:
        """The images that are trained on."""
        chosen = [picture for picture in self.annotations.pictures if has_extent(picture)]
        if not chosen:
            raise DataError(f"{self.annotations.source}: no image has an object to be learnt")
        return chosen

    @cached_property
    def outlined(self) -> bool:
        """True if every object has an outline."""
        return self.annotations.unoutlined is None

    def __len__(self) -> int:
        return len(self.pictures)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        chosen = [self.pictures[index] for index in indices.tolist()]
        mirrored = [False] * len(chosen)
        if seed is not None:
            mirrored = (uniforms(seed, indices, 1)[:, 0] < 0.5).tolist()
        shown = [self.show(*pair) for pair in zip(chosen, mirrored, strict=True)]
        images, boxes, categories, masks = zip(*shown, strict=True)
        counts = torch.tensor([len(picture_boxes) for picture_boxes in boxes])
        objects = (torch.cat(boxes), torch.cat(categories), torch.cat(masks))
        return Batch((*pack_images(images), counts, *objects), indices)

    def show(self, picture: Picture, mirrored: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the image, its boxes, their categories, and the pixels of their masks."""
        image = read_picture(self.folder, self.annotations.source, picture)
        single = [instance for instance in picture.instances if not instance.crowd]
        boxes = corners(single, picture)
        visible = (boxes[:, 2:] > boxes[:, :2]).all(1)
        single = [instance for instance, keep in zip(single, visible.tolist(), strict=True) if keep]
        boxes, masks = boxes[visible], self.masks(single, picture)
        categories = torch.tensor([instance.category for instance in single], dtype=torch.int64)
        if mirrored:
            image, masks = image.flip(-1), masks.flip(-1)
            boxes[:, [0, 2]] = picture.width - boxes[:, [2, 0]]
        return image, boxes, categories, masks.flatten()

    def masks(self, chosen: Sequence[Instance], picture: Picture) -> UInt8[Tensor, "n h w"]:
        """Returns the mask of each object, or none at all."""
        size = picture.height, picture.width
        drawn = chosen if self.outlined else ()
        outlines = [instance.outline for instance in drawn if instance.outline is not None]
        masks = [torch.from_numpy(mask_of(outline, *size)) for outline in outlines]
        return torch.stack(masks) if masks else torch.zeros(0, *size, dtype=torch.uint8)


def has_extent(picture: Picture) -> bool:
    """True if anything on an image, crowds included, is more than a pixel wide and high."""
    return any(min(instance.box[2:]) > 1 for instance in picture.instances)


def corners(chosen: Sequence[Instance], picture: Picture) -> Float[Tensor, "n 4"]:
    """Returns the boxes (left, top, right, bottom), no farther than the image."""
    boxes = torch.tensor([instance.box for instance in chosen], dtype=torch.float32).view(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    boxes[:, 0::2].clamp_(0, picture.width)
    boxes[:, 1::2].clamp_(0, picture.height)
    return boxes


def read_picture(folder: Path, source: Path, picture: Picture) -> UInt8[Tensor, "3 h w"]:
    """Returns the pixels of an image, which has the size that its annotations are for."""
    image = decode_image(str(folder / picture.file))
    size = picture.height, picture.width
    if image.shape[1:] != size:
        height, width = image.shape[1:]
        raise DataError(
            f"{folder / picture.file} is {height} high and {width} wide, and image {picture.id} in "
            f"{source} {size[0]} and {size[1]}; put the image there that was annotated"
        )
    return image


def pack_images(
    images: Sequence[UInt8[Tensor, "3 _ _"]],
) -> tuple[UInt8[Tensor, " n"], Int64[Tensor, "b 2"]]:
    """Returns all pixels in a row, and the sizes (height, width)."""
    sizes = torch.tensor([image.shape[1:] for image in images])
    return torch.cat([image.flatten() for image in images]), sizes
