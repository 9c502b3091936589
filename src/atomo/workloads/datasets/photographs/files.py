"""Image files on disk: a folder a class, found, decoded and, where they fit, kept."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from atomo.core.safe_read import open_plain
from atomo.errors import DataError

__all__ = [
    "CACHE_BYTES",
    "Decoded",
    "Tree",
    "common_size",
    "decode_image",
    "header_size",
    "list_tree",
    "require_classes",
]

CACHE_BYTES = 1 << 30  # of decoded pixels, for a whole data set
SUFFIXES = (".jpg", ".jpeg", ".png")


@final
@dataclass(frozen=True, eq=False)
class Tree:
    """The images of one split, ordered by class and then by file name."""

    classes: tuple[str, ...]
    """The sorted names of the folders; a label is a position here."""
    paths: tuple[str, ...]
    labels: Int64[Tensor, " n"]


def list_tree(root: Path) -> Tree:
    """Lists `root`/CLASS/IMAGE; names that start with a dot and files of other kinds do not count.

    Raises:
        DataError: there is no class, or a class without an image.
    """
    with os.scandir(root) as entries:
        classes = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not classes:
        raise DataError(f"{root} holds no folder; expected one for each class, with its images")
    groups = [list_images(root / name) for name in classes]
    counts = torch.tensor([len(group) for group in groups])
    labels = torch.arange(len(classes)).repeat_interleave(counts)
    return Tree(tuple(classes), tuple(path for group in groups for path in group), labels)


def list_images(folder: Path) -> list[str]:
    """Returns the images of one class, by name."""
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.name.lower().endswith(SUFFIXES))
    paths = [os.path.join(folder, name) for name in names if not name.startswith(".")]
    if not paths:
        raise DataError(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    return paths


def require_classes(expected: Sequence[str], present: Sequence[str], root: Path) -> None:
    """Checks the folders in `root` against the classes that there should be.

    Raises:
        DataError: a class is missing, or a folder is no class.
    """
    absent, odd = sorted({*expected} - {*present}), sorted({*present} - {*expected})
    if absent:
        raise DataError(f"{root} has no folder for class {absent[0]!r}; it needs {len(expected)}")
    if odd:
        raise DataError(f"{root / odd[0]} is no class; there are {', '.join(expected)}"[:500])


def decode_image(path: str) -> UInt8[Tensor, "3 h w"]:
    """Returns the pixels of one image, in RGB.

    Raises:
        DataError: the file cannot be read, or has more than 8 bits a channel.
    """
    try:
        with open_plain(Path(path), linked=True) as file, Image.open(file) as image:
            if image.mode.startswith(("I", "F")):  # Pillow would clip them to 8 bits
                raise DataError(f"cannot read image {path}: more than 8 bits a channel")
            plain = image.convert("RGBA") if "transparency" in image.info else image
            pixels = np.array(plain.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow's readers let any error of damaged bytes through
        raise DataError(f"cannot read image {path}: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def common_size(paths: Iterable[str]) -> tuple[int, int] | None:
    """Returns height and width if all images share them. Reads headers, up to the first that
    differs.

    Raises:
        DataError: a file is no image.
    """
    first: tuple[int, int] | None = None
    for path in paths:
        size = header_size(path)
        if size != (first := first or size):
            return None
    return first


def header_size(path: str) -> tuple[int, int]:
    """Reads height and width, without decoding the pixels."""
    try:
        with open_plain(Path(path), linked=True) as file, Image.open(file) as image:
            return image.height, image.width
    except Exception as error:  # as above
        raise DataError(f"cannot read image {path}: {error}") from error


@final
class Decoded:
    """Images of one size, decoded on first use, and cached if `keep` is True."""

    def __init__(self, paths: Sequence[str], size: tuple[int, int], *, keep: bool) -> None:
        self.paths, self.size = paths, size
        count = len(paths) if keep else 0
        # The system hands out pages as they are first written, so an unread image costs nothing.
        self.pixels = torch.empty(count, 3, *size, dtype=torch.uint8)
        self.known = torch.zeros(count, dtype=torch.bool)

    def read(self, indices: Int64[Tensor, " b"]) -> UInt8[Tensor, "b 3 h w"]:
        """Returns the images at `indices`. Threads may call it together: they write equal bytes."""
        if not len(self.known):
            return torch.stack([self.decode(index) for index in indices.tolist()])
        unknown = indices[~self.known[indices]]
        for index in unknown.tolist():
            self.pixels[index] = self.decode(index)
        self.known[unknown] = True
        return self.pixels[indices]

    def image(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Returns the image at one index."""
        return self.read(torch.tensor([index]))[0]

    def decode(self, index: int) -> UInt8[Tensor, "3 h w"]:
        """Decodes one image and checks its size."""
        image = decode_image(self.paths[index])
        if image.shape[1:] != self.size:
            (h, w), (height, width) = image.shape[1:], self.size
            raise DataError(f"{self.paths[index]} is {h}x{w}, and should be {height}x{width}")
        return image
