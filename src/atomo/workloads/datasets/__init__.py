"""Data sets, by name. To add one: write its module, then list its source in DATASETS."""

from pathlib import Path
from typing import Final

from atomo.core.names import resolve
from atomo.core.tables import Table
from atomo.workloads.datasets.base import Dataset, DatasetSource, Split
from atomo.workloads.datasets.hashing import epoch_seed

__all__ = ["DATASETS", "Dataset", "Source", "Split", "epoch_seed", "load_dataset"]

DATASETS: Final[Table[DatasetSource]] = Table(
    __name__,
    {
        "Digits": "digits:DIGITS",
        "MNIST": "mnist:MNIST",
        "Cifar10": "cifar:CIFAR10",
        "Cifar100": "cifar:CIFAR100",
        "SVHN": "svhn:SVHN",
        "ImageNet": "photographs.imagenet:IMAGENET",
        "Imagenette": "photographs.imagenette:IMAGENETTE",
        "Folder": "photographs.folder:FOLDER",
        "Noise": "noise:NOISE",
    },
)


def load_dataset(name: str, data_dir: Path, image_size: int | None = None) -> Dataset:
    """Loads a data set that is already on disk; nothing is fetched.

    >>> load_dataset("digits", Path("unused")).input_shape
    (1, 32, 32)

    Args:
        name: a key of `DATASETS`, in any case, with or without `-` and `_`.
        data_dir: the folder that holds the data sets; `docs/data.md` draws the expected files.
        image_size: pixels a side, for data sets of images of any size (ImageNet, Folder).

    Raises:
        ConfigError: no data set has this name, or it does not come in this image size.
        DataError: the data set is not in `data_dir`, or is damaged.
    """
    return DATASETS[resolve("data set", name, DATASETS)].load(data_dir, image_size)
