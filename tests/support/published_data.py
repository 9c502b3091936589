"""Tiny data sets in their published formats, for two steps of any published command line."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from workloads.real_format import (
    LEXICON,
    write_encoder,
    write_labels,
    write_sentences,
    write_speech,
)
from workloads.shapes import write_shapes

from atomo.workloads.datasets.cifar import CIFAR10_CLASSES

__all__ = ["write_data", "write_pretrained"]


def write_data(root: Path) -> None:
    """Everything that a published command line trains on, but for CIFAR-100.

    That one is accepted with the published checksums alone.
    """
    rng = np.random.default_rng(7)
    write_images(root / "cifar10", ("train", "test"), CIFAR10_CLASSES, 32, rng)
    write_images(root / "imagenet", ("train", "val"), ("n01440764", "n01443537"), 64, rng)
    write_images(root, ("train", "test"), ("phở", "bún"), 64, rng)
    write_mnist(root / "mnist", rng)
    for name in ("wiki10", "eurlex4k"):
        write_labels(root / name, train=16, test=8)
    write_sentences(root / "UIT-VSFC", 16, 6)
    write_speech(root / "vivos", 8, 4)
    write_shapes(root / "coco", 4, 2)


def write_pretrained(root: Path) -> None:
    """PhoBERT's folder, with an encoder of one small layer. It needs the package transformers."""
    write_encoder(root / "phobert-base", LEXICON, length=256)


def write_images(
    root: Path, splits: Sequence[str], classes: Sequence[str], side: int, rng: np.random.Generator
) -> None:
    """Two images a class in each split."""
    for folder in (root / split / name for split in splits for name in classes):
        folder.mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")


def write_mnist(root: Path, rng: np.random.Generator) -> None:
    """Eight digits to train on, and four."""
    root.mkdir(parents=True)
    for split, count in (("train", 8), ("t10k", 4)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", pixels), ("labels-idx1", pixels[:, 0, 0] % 10)):
            head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (root / f"{split}-{name}-ubyte").write_bytes(head + array.tobytes())
