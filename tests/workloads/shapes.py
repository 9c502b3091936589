"""Drawn shapes with their outlines, in COCO's format."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CATEGORIES = [{"id": 18, "name": "disc"}, {"id": 3, "name": "box"}]  # as in COCO: with gaps


def corners(kind: int, x: float, y: float, radius: float) -> list[float]:
    """Returns the outline of a shape about (x, y)."""
    if kind == 3:
        sides = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
        return [part for a, b in sides for part in (x + a * radius, y + b * radius)]
    angles = [2 * math.pi * k / 24 for k in range(24)]
    around = [(math.cos(angle), math.sin(angle)) for angle in angles]
    return [part for a, b in around for part in (x + a * radius, y + b * radius)]


def draw(rng: np.random.Generator, height: int, width: int) -> tuple[Image.Image, list[Any]]:
    """Returns noise with one or two shapes, each in its own half, and their annotations."""
    image = Image.fromarray(rng.integers(0, 60, (height, width, 3), dtype=np.uint8))
    pen, shapes = ImageDraw.Draw(image), []
    halves = rng.permutation(2)[: rng.integers(1, 3)]
    for half in halves:
        kind, radius = [18, 3][rng.integers(2)], rng.uniform(12, 14)
        x = width * (0.25 + 0.5 * half) + rng.uniform(-1, 1)
        y = rng.uniform(radius + 1, height - radius - 1)
        outline = corners(kind, x, y, radius)
        color = tuple(map(int, rng.integers(120, 256, 3)))
        pen.polygon(list(zip(outline[::2], outline[1::2], strict=True)), fill=color)
        left, top = min(outline[::2]), min(outline[1::2])
        box = [left, top, max(outline[::2]) - left, max(outline[1::2]) - top]
        shapes.append({"category_id": kind, "bbox": box, "segmentation": [outline]})
    return image, shapes


def write_shapes(root: Path, train: int = 48, val: int = 16) -> None:
    """Images of 58 to 64 pixels a side, `train2017`, `val2017`, and their annotations."""
    rng = np.random.default_rng(5)
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train2017", train), ("val2017", val)):
        (root / split).mkdir()
        images, annotations = [], []
        for number in range(1, count + 1):
            height, width = (int(side) for side in rng.integers(58, 65, 2))
            image, shapes = draw(rng, height, width)
            name = f"{number:012d}.png"
            image.save(root / split / name)
            images.append({"id": number, "file_name": name, "height": height, "width": width})
            for shape in shapes:
                area = shape["bbox"][2] * shape["bbox"][3]
                numbered = {"id": len(annotations) + 100, "image_id": number, "iscrowd": 0}
                annotations.append(shape | numbered | {"area": area})
        whole = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(whole))
