"""Annotations of images: a file of COCO's format, `instances_*.json`, checked as it is read.

Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014; the format is described on
COCO's page on data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, final

from atomo.errors import DataError
from atomo.workloads.detection.entries import AnnotationEntry, read_lists
from atomo.workloads.detection.outlines import Outline, read_outline

__all__ = ["Annotations", "Instance", "Picture", "read_annotations"]

BOX: Final = "[left, top, width, height], in pixels, width and height 0 or more"
SIDE: Final = 65_500  # pixels: the largest side of a JPEG
KINDS: Final = {"images": "image", "annotations": "annotation", "categories": "category"}


@final
@dataclass(frozen=True, slots=True)
class Instance:
    """One object, or a crowd of objects."""

    id: int
    category: int
    """The id of its category, as the file has it."""
    box: tuple[float, ...]
    """Left, top, width, height; pixels."""
    area: float
    """The area in square pixels, which divides objects into small and large for AP."""
    crowd: bool
    """True if it stands for several, of which a detector need not find each."""
    outline: Outline | None


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """An image and its objects."""

    id: int
    file: str
    """Its path in the folder of the split."""
    height: int
    width: int
    instances: tuple[Instance, ...]


@final
@dataclass(frozen=True)
class Annotations:
    """One file."""

    source: Path
    categories: Mapping[int, str]
    """Their names, by their ids in ascending order."""
    pictures: tuple[Picture, ...]

    @property
    def unoutlined(self) -> Instance | None:
        """The first object that is a box alone."""
        instances = (instance for picture in self.pictures for instance in picture.instances)
        return next((instance for instance in instances if instance.outline is None), None)


def read_annotations(path: Path) -> Annotations:
    """Reads a file of instances.

    Raises:
        DataError: the file is missing or not in the format; the message names the annotation, image
            or category by its id, and names the allowed values.
    """
    images, annotations, categories = read_lists(path, KINDS)
    names = {
        entry.whole("id", high=2**31 - 1): entry.text("name") for entry in distinct(categories)
    }
    sized = {entry.whole("id"): entry for entry in distinct(images)}
    if not names or not sized:
        empty = "categories" if sized else "images"
        raise DataError(f"{path}: the list {empty!r} is empty; there must be one at least")
    sides = {
        number: (side(entry, "height"), side(entry, "width")) for number, entry in sized.items()
    }
    instances: defaultdict[int, list[Instance]] = defaultdict(list)
    for entry in distinct(annotations):
        picture, category = entry.whole("image_id"), entry.whole("category_id")
        for key, value, listed in (("image_id", picture, sides), ("category_id", category, names)):
            if value not in listed:
                raise entry.error(f"{key} is {value}, which the file does not list; remove it")
        instances[picture].append(read_instance(entry, category, *sides[picture]))
    pictures = (
        Picture(number, file_of(entry), *sides[number], tuple(instances[number]))
        for number, entry in sized.items()
    )
    return Annotations(path, dict(sorted(names.items())), tuple(pictures))


def distinct(entries: Sequence[AnnotationEntry]) -> Iterable[AnnotationEntry]:
    """Returns the same; an id that is there twice is an error."""
    seen: set[int] = set()
    for entry in entries:
        if entry.whole("id") in seen:
            raise entry.error("the id is there twice; give each its own")
        seen.add(entry.whole("id"))
    return entries


def side(image: AnnotationEntry, key: str) -> int:
    return image.whole(key, 1, SIDE)


def file_of(image: AnnotationEntry) -> str:
    """Returns the path of an image, which must not leave its folder."""
    name = image.text("file_name")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise image.error(f"file_name is {name!r}; must be a path within the folder of the images")
    return name


def read_instance(entry: AnnotationEntry, category: int, height: int, width: int) -> Instance:
    """Reads the annotation of one object in an image of this size."""
    box = entry.numbers("bbox", 4, BOX)
    if min(box[2:]) < 0:
        raise entry.error(f"bbox is {list(box)}; must be {BOX}")
    try:
        outline = read_outline(entry.fields.get("segmentation"), height, width)
    except ValueError as error:
        raise entry.error(f"segmentation {error}") from error
    area = entry.size("area") if "area" in entry.fields else box[2] * box[3]
    crowd = entry.whole("iscrowd", 0, 1) if "iscrowd" in entry.fields else 0
    return Instance(entry.whole("id"), category, box, area, bool(crowd), outline)
