"""Handwritten digits that scikit-learn ships: a real data set with nothing to download.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998: 1797 images of 8x8
pixels with values 0 to 16.
"""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # the field's own abbreviation
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from atomo.data.arrays import ArraySplit, Normalisation, in_memory
from atomo.data.base import Dataset, Source, require_size

__all__ = ["DIGITS"]

SHAPE = (1, 32, 32)
WHITE = 16  # the largest pixel value in the original
NORMALISATION = Normalisation((0.3057,), (0.3238,))  # of the train split's pixels


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Upsamples the digits to 32x32, bilinearly, and rounds to 8 bits."""
    del data_dir  # they come with scikit-learn
    require_size("Digits", SHAPE, image_size)
    images, labels = original()
    smooth = F.interpolate(images, SHAPE[1:], mode="bilinear", align_corners=False)
    pixels = (smooth * (255 / WHITE)).round().to(torch.uint8)
    test = held_out(labels)
    train, test_split = (
        ArraySplit(in_memory(pixels[chosen]), labels[chosen], NORMALISATION)
        for chosen in (~test, test)
    )
    return Dataset("Digits", 10, SHAPE, train, test_split)


def original() -> tuple[Float[Tensor, "n 1 8 8"], Int64[Tensor, " n"]]:
    from sklearn.datasets import load_digits  # 1 s to import

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None]
    return images, torch.from_numpy(digits.target).long()


def held_out(labels: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Marks every fifth image, counted through the classes one after the other, as a test image.

    Counting on from class to class gives 360 test images, a fifth of each class to within one. It
    is plain arithmetic on purpose: no release of any library can ever change the split.
    """
    by_class = labels.argsort(stable=True)
    test = torch.zeros(len(labels), dtype=torch.bool)
    test[by_class[::5]] = True
    return test


DIGITS = Source(
    name="Digits",
    input_shape=SHAPE,
    classes=10,
    load=load,
    by_hand="nothing anywhere: scikit-learn ships it",
)
