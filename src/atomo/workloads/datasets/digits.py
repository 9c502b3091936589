"""Handwritten digits that scikit-learn ships: a real data set with nothing to download.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998: 1797 images of 8x8
pixels with values 0 to 16.
"""

import gzip
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the field's own abbreviation
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.datasets.arrays import ArraySplit, Normalisation, in_memory
from atomo.workloads.datasets.base import Dataset, DatasetSource, require_size

__all__ = ["DIGITS"]

SHAPE = (1, 32, 32)
WHITE = 16  # the largest pixel value in the original
NORMALISATION = Normalisation((0.3057,), (0.3238,))  # of the train split's pixels


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Returns the digits, split into training and test images."""
    del data_dir  # they come with scikit-learn
    require_size("Digits", SHAPE, image_size)
    pixels, labels = upsampled(shipped())
    test = mark_test_images(labels)
    train, test_split = (
        ArraySplit(in_memory(pixels[chosen]), labels[chosen], NORMALISATION)
        for chosen in (~test, test)
    )
    return Dataset("Digits", 10, SHAPE, train, test_split)


@cache  # ranks that are threads, and trainings in a notebook, load them again and again
def upsampled(file: Path) -> tuple[UInt8[Tensor, "n 1 32 32"], Int64[Tensor, " n"]]:
    """Upsamples the digits to 32x32, bilinearly, and rounds to 8 bits. Nobody may change them."""
    images, labels = original(file)
    smooth = F.interpolate(images, SHAPE[1:], mode="bilinear", align_corners=False)
    return (smooth * (255 / WHITE)).round().to(torch.uint8), labels


def original(file: Path) -> tuple[Float[Tensor, "n 1 8 8"], Int64[Tensor, " n"]]:
    """Reads the file itself: to import scikit-learn takes as long as to import PyTorch."""
    text = gzip.decompress(file.read_bytes()).decode()
    numbers = np.fromstring(text.replace("\n", ","), np.float32, sep=",")  # each rank waits for it
    table = torch.from_numpy(numbers).reshape(text.count("\n"), -1)
    return table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].long()


def shipped() -> Path:
    """Returns the file of scikit-learn, found without an import of it."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "Digits needs scikit-learn, which ships them: "
            f"{sys.executable} -m pip install scikit-learn"
        )
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataError(f"Digits: scikit-learn has no {path}; another release of it may")
    return path


def mark_test_images(labels: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Marks every fifth image, counted through the classes one after the other, as a test image.

    Counting on from class to class gives 360 test images, a fifth of each class to within one. It
    is plain arithmetic on purpose: no release of any library can ever change the split.
    """
    by_class = labels.argsort(stable=True)
    test = torch.zeros(len(labels), dtype=torch.bool)
    test[by_class[::5]] = True
    return test


DIGITS = DatasetSource(
    name="Digits",
    input_shape=SHAPE,
    classes=10,
    load=load,
    by_hand="nothing anywhere: scikit-learn ships it",
)
