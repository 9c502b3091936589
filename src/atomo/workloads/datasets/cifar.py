"""CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features", 2009)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

import torch

from atomo.workloads.datasets.arrays import ArraySplit, CropFlip, Normalisation, in_memory
from atomo.workloads.datasets.base import Dataset, DatasetSource, missing, require_size
from atomo.workloads.datasets.official import original, require_intact
from atomo.workloads.datasets.photographs.files import require_classes
from atomo.workloads.datasets.photographs.folder import find_trees, small_dataset

__all__ = ["CIFAR10", "CIFAR100"]

SHAPE = (3, 32, 32)
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@final
@dataclass(frozen=True)
class Variant:
    """Differences between CIFAR-10 and CIFAR-100."""

    name: str
    classes: int
    folder: str
    archive: str
    normalise: Normalisation

    @property
    def original(self) -> Any:
        """Torchvision's class for it."""
        return original(self.name.upper())

    def host(self) -> str:
        """Returns the host of the archive."""
        return str(urlsplit(self.original.url).hostname)


TEN = Variant(
    "Cifar10",
    10,
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
HUNDRED = Variant(
    "Cifar100",
    100,
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)


def load_cifar10(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads the original batches or, where there are none, a folder of images a class."""
    require_size(TEN.name, SHAPE, image_size)
    root = data_dir / "cifar10"
    dataset = load_batches(TEN, data_dir)
    if dataset:
        return dataset
    trees = find_trees(root, ("test",))
    if trees is None:
        raise missing(CIFAR10, data_dir, [*batch_folders(TEN, data_dir), f"{root}/train and test"])
    require_classes(CIFAR10_CLASSES, trees[0].classes, root / "train")
    return small_dataset(TEN.name, trees, SHAPE[1:], TEN.normalise)


def load_cifar100(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads the original files."""
    require_size(HUNDRED.name, SHAPE, image_size)
    dataset = load_batches(HUNDRED, data_dir)
    if not dataset:
        raise missing(CIFAR100, data_dir, batch_folders(HUNDRED, data_dir))
    return dataset


def batch_folders(variant: Variant, data_dir: Path) -> list[str]:
    """Returns the folders that may hold the original files."""
    roots = data_dir, data_dir / variant.name.lower()
    return [str(root / variant.folder) for root in roots]


def load_batches(variant: Variant, data_dir: Path) -> Dataset | None:
    """Returns the data set from its original files, if their folder is there."""
    original = variant.original
    folders = [Path(f) for f in batch_folders(variant, data_dir) if Path(f).is_dir()]
    if not folders:
        return None
    checksums = [*original.train_list, *original.test_list]
    checksums.append([original.meta["filename"], original.meta["md5"]])
    require_intact(variant.name, folders[0], [(file, md5) for file, md5 in checksums])
    train = read_split(variant, folders[0].parent, True)
    test = read_split(variant, folders[0].parent, False)
    return Dataset(variant.name, variant.classes, SHAPE, train, test)


def read_split(variant: Variant, root: Path, train: bool) -> ArraySplit:
    """Reads one split through torchvision."""
    raw = variant.original(str(root), train=train)
    images = torch.from_numpy(raw.data).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(raw.targets)
    return ArraySplit(in_memory(images), labels, variant.normalise, CropFlip() if train else None)


def fetch(variant: Variant, data_dir: Path) -> None:
    """Downloads and unpacks the original files."""
    variant.original(str(data_dir), download=True)


CIFAR10 = DatasetSource(
    name=TEN.name,
    input_shape=SHAPE,
    classes=TEN.classes,
    load=load_cifar10,
    by_hand=(
        f"the folder {TEN.folder} out of {TEN.archive} in {{data_dir}}, or "
        "images in {data_dir}/cifar10/train/CLASS/ and {data_dir}/cifar10/test/CLASS/"
    ),
    fetch=partial(fetch, TEN),
    host=TEN.host,
)
CIFAR100 = DatasetSource(
    name=HUNDRED.name,
    input_shape=SHAPE,
    classes=HUNDRED.classes,
    load=load_cifar100,
    by_hand=f"the folder {HUNDRED.folder} out of {HUNDRED.archive} in {{data_dir}}",
    fetch=partial(fetch, HUNDRED),
    host=HUNDRED.host,
)
