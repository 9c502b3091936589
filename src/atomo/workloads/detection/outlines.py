"""Outlines of objects: polygons, or runs of pixels, as COCO's files have them."""

import math
from array import array
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from jaxtyping import UInt8

from atomo.workloads.detection.coco import pycocotools

__all__ = ["Outline", "Polygons", "Runs", "mask_of", "read_outline"]

FARTHEST: Final = (
    65_536.0  # pixels from the corner: a farther point is no outline, but takes memory
)


@final
@dataclass(frozen=True, slots=True)
class Polygons:
    """The area that is in any of some polygons."""

    corners: tuple["array[float]", ...]
    """The x and y of every corner, in pixels, for each polygon."""

    def encoded(self, height: int, width: int) -> Any:
        """Returns the runs in the compressed form of pycocotools."""
        mask = pycocotools("mask")
        return mask.merge(mask.frPyObjects(list(map(list, self.corners)), height, width))


@final
@dataclass(frozen=True, slots=True)
class Runs:
    """Numbers of pixels that in turn are outside and inside, column after column."""

    counts: "array[int]"

    def encoded(self, height: int, width: int) -> Any:
        """Returns the same as pycocotools compresses it."""
        runs = {"size": [height, width], "counts": list(self.counts)}
        return pycocotools("mask").frPyObjects(runs, height, width)


Outline = Polygons | Runs


def read_outline(segmentation: Any, height: int, width: int) -> Outline | None:
    """Reads an annotation's `segmentation`; returns None if there is none.

    Raises:
        ValueError: it is not an outline in an image of this size; the message continues
            "segmentation ...".
    """
    match segmentation:
        case None | []:
            return None
        case list():
            return Polygons(tuple(map(read_polygon, segmentation)))
        case {"counts": counts, "size": size}:
            return read_runs(counts, size, height, width)
    raise ValueError(
        "must be a list of polygons [[x, y, x, y, ...], ...] or {'size': [h, w], 'counts': ...}"
    )


def read_polygon(numbers: Any) -> "array[float]":
    """Returns the corners of one polygon."""
    try:
        corners = numbers if isinstance(numbers, array) else array("d", numbers)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"has a polygon that is no list of numbers: {error}") from error
    if len(corners) < 6 or len(corners) % 2:
        raise ValueError(
            f"has a polygon of {len(corners)} numbers; must be x and y of three corners or more"
        )
    near = min(corners) >= -FARTHEST and max(corners) <= FARTHEST
    if not near or math.isnan(sum(corners)):  # NaN is neither more nor less
        raise ValueError(f"has a corner that is not within {FARTHEST:.0f} pixels of the image")
    return corners


def read_runs(counts: Any, size: object, height: int, width: int) -> Runs:
    """Returns runs that fill an image of this size exactly."""
    if size != [height, width]:
        raise ValueError(f"has runs for [h, w] = {size}, and the image is {[height, width]}")
    if isinstance(counts, str):
        counts = decompress_counts(counts)
    whole = isinstance(counts, list) and all(type(count) is int and count >= 0 for count in counts)
    if not whole or sum(counts) != height * width:
        raise ValueError(
            f"has counts that do not add up to {height} x {width}; they must be whole numbers, 0 or"
            " more, or pycocotools' string of them"
        )
    return Runs(array("q", counts))


def decompress_counts(text: str) -> list[int]:
    """Returns the counts in a string of pycocotools: five bits a character, differences from the
    third on.

    It is read here since pycocotools trusts it.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        part = ord(character) - 48
        if not 0 <= part < 64 or shift > 60:
            raise ValueError(f"has counts with the character {character!r}, or too long a number")
        value |= (part & 31) << shift
        shift += 5
        if not part & 32:  # the last of this number
            value -= (part & 16 and 1) << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts


def mask_of(outline: Outline, height: int, width: int) -> UInt8[np.ndarray, "h w"]:
    """Returns 1 where the object is."""
    # pycocotools' own `decode` raises warnings with NumPy 2.
    counts = decompress_counts(outline.encoded(height, width)["counts"].decode())
    inside = (np.arange(len(counts)) % 2).astype(np.uint8)
    return inside.repeat(counts).reshape(width, height).T
