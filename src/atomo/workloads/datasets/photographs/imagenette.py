"""Imagenette: ten classes of ImageNet that are easy to distinguish (Howard, 2019)."""

from pathlib import Path
from typing import Final

from atomo.workloads.datasets.base import Dataset, DatasetSource, missing
from atomo.workloads.datasets.official import original
from atomo.workloads.datasets.photographs.files import require_classes
from atomo.workloads.datasets.photographs.folder import find_trees, photo_dataset
from atomo.workloads.datasets.photographs.photos import PHOTO_SIZE, photo_shape

__all__ = ["IMAGENETTE"]

FOLDERS: Final = ("imagenette2", "imagenette2-320", "imagenette2-160", "imagenette")
CLASSES: Final = (
    *("n01440764", "n02102084", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads the first of the folders that is there, with images of any size."""
    shape = photo_shape(image_size)
    roots = [data_dir / folder for folder in FOLDERS]
    for root in roots:
        if trees := find_trees(root, ("val",)):
            require_classes(CLASSES, trees[0].classes, root / "train")
            return photo_dataset("Imagenette", trees, shape)
    raise missing(IMAGENETTE, data_dir, [f"{root}/train and val" for root in roots])


def fetch(data_dir: Path) -> None:
    """Downloads and unpacks the archive of whole photographs, 1.5 GB."""
    original("Imagenette")(str(data_dir), split="train", size="full", download=True)


IMAGENETTE = DatasetSource(
    name="Imagenette",
    input_shape=(3, PHOTO_SIZE, PHOTO_SIZE),
    classes=len(CLASSES),
    load=load,
    by_hand="the folder imagenette2 out of imagenette2.tgz in {data_dir}",
    fetch=fetch,
    host=lambda: "s3.amazonaws.com",
)
