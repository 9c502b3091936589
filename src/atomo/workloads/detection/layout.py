"""Paths of COCO's files.

annotations/instances_train2017.json    or any one instances_train*.json
annotations/instances_val2017.json      or any one instances_val*.json
train2017/*.jpg, val2017/*.jpg          named after the files; images/train2017, train/ too
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from atomo.errors import DataError

__all__ = ["SplitPaths", "find_split"]

BEGINNING: Final = "instances_"


@final
@dataclass(frozen=True)
class SplitPaths:
    """Paths of a split's annotations and images."""

    annotations: Path
    images: Path


def find_split(root: Path, split: str) -> SplitPaths:
    """Finds the annotations and the images of a split.

    Args:
        root: the folder of the data set.
        split: `train` or `val`.

    Raises:
        DataError: annotations or images are missing, or there are several files of annotations.
    """
    files = sorted((root / "annotations").glob(f"{BEGINNING}{split}*.json"))
    expected = f"annotations/{BEGINNING}{split}2017.json and its images in {split}2017/"
    if not files:
        raise DataError(f"{root} has no annotations of its split {split!r}; expected {expected}")
    if len(files) > 1:
        raise DataError(
            f"{files[0]} and {files[1].name}: two files of the split {split!r}; leave one there"
        )
    name = files[0].stem.removeprefix(BEGINNING)
    places = [root / name, root / "images" / name, root / split, root / "images" / split]
    images = next((place for place in places if place.is_dir()), None)
    if images is None:
        tried = ", ".join(str(place.relative_to(root)) for place in places)
        raise DataError(f"{root} has no folder of the images of {files[0].name}; tried {tried}")
    return SplitPaths(files[0], images)
