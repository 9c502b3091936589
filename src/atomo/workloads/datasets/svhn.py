"""SVHN, digits of house numbers (Netzer et al., "Reading digits in natural images", 2011)."""

from pathlib import Path
from urllib.parse import urlsplit

import torch

from atomo.workloads.datasets.arrays import ArraySplit, CropFlip, Normalisation, in_memory
from atomo.workloads.datasets.base import Dataset, DatasetSource, missing, require_size
from atomo.workloads.datasets.official import original, require_intact

__all__ = ["SVHN"]

SHAPE = (3, 32, 32)
CLASSES = 10
NORMALISATION = Normalisation((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
SHIFT = CropFlip(flip=False)  # a mirrored digit is no digit


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads train_32x32.mat and test_32x32.mat."""
    require_size("SVHN", SHAPE, image_size)
    folders = [data_dir / "svhn", data_dir]
    folder = next((f for f in folders if (f / file_of("train")[0]).is_file()), None)
    if folder is None:
        raise missing(SVHN, data_dir, [str(f / file_of("train")[0]) for f in folders])
    require_intact("SVHN", folder, [file_of("train"), file_of("test")])
    train, test = read_split(folder, "train"), read_split(folder, "test")
    return Dataset("SVHN", CLASSES, SHAPE, train, test)


def file_of(split: str) -> tuple[str, str]:
    """Returns the name and the MD5 of a split's file."""
    _, name, md5 = original("SVHN").split_list[split]
    return name, md5


def read_split(folder: Path, split: str) -> ArraySplit:
    """Reads one split through torchvision."""
    raw = original("SVHN")(str(folder), split=split)
    images, labels = torch.from_numpy(raw.data).contiguous(), torch.from_numpy(raw.labels)
    augment = SHIFT if split == "train" else None
    return ArraySplit(in_memory(images), labels, NORMALISATION, augment)


def fetch(data_dir: Path) -> None:
    """Downloads both files to `data_dir`/svhn."""
    for split in ("train", "test"):
        original("SVHN")(str(data_dir / "svhn"), split=split, download=True)


def host() -> str:
    return str(urlsplit(original("SVHN").split_list["train"][0]).hostname)


SVHN = DatasetSource(
    name="SVHN",
    input_shape=SHAPE,
    classes=CLASSES,
    load=load,
    by_hand="train_32x32.mat and test_32x32.mat (the cropped digits) in {data_dir}/svhn",
    fetch=fetch,
    host=host,
)
