"""Tiny data sets in their real formats, written by the tests, and the real ones where they are."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Generator, Tensor

SIZES = {"train": 6, "t10k": 4}
WriteTree = Callable[..., Path]


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=Generator().manual_seed(seed))


def idx_bytes(entries: Tensor) -> bytes:
    header = struct.pack(f">4B{entries.dim()}I", 0, 0, 8, entries.dim(), *entries.shape)
    return header + entries.numpy().tobytes()


@pytest.fixture
def mnist_files() -> dict[str, bytes]:
    """Returns the four files of a tiny MNIST, unpacked, by name."""
    files = {}
    for split, n in SIZES.items():
        files[f"{split}-images-idx3-ubyte"] = idx_bytes(pixels(n, 28, 28, seed=n))
        files[f"{split}-labels-idx1-ubyte"] = idx_bytes(torch.arange(n, dtype=torch.uint8))
    return files


@pytest.fixture
def write_mnist(mnist_files: dict[str, bytes]) -> Callable[[Path], Path]:
    """Writes the tiny MNIST, images gzipped and labels plain, into a folder."""

    def write(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in mnist_files.items():
            zipped = "images" in name
            path = folder / (f"{name}.gz" if zipped else name)
            path.write_bytes(gzip.compress(content) if zipped else content)
        return folder

    return write


@pytest.fixture
def write_tree() -> WriteTree:
    """Writes `each` images a class, of the (height, width) that `size(i)` gives for the i-th."""

    def write(
        root, classes=("cat", "dog"), splits=("train", "test"), each=3, size=None, suffix="jpg"
    ):
        count = 0
        for split in splits:
            for name in classes:
                folder = root / split / name
                folder.mkdir(parents=True)
                for i in range(each):
                    height, width = size(count) if size else (32, 32)
                    image = pixels(height, width, 3, seed=count).numpy()
                    Image.fromarray(image).save(folder / f"{i:04}.{suffix}")
                    count += 1
        return root

    return write


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Returns the folder with `mnist/*.gz` and `cifar10/{train,test}/CLASS/*.jpg`."""
    folder = os.environ.get("ATOMO_DATA")
    if not folder:
        pytest.skip("set ATOMO_DATA to a folder with mnist/*.gz and cifar10/train, cifar10/test")
    return Path(folder)
