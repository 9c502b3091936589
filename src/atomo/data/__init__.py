"""Data sets, by name. To add one: write its module, then list its source in DATASETS."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from atomo.data.base import Dataset, Source, Split
from atomo.data.hashing import epoch_seed
from atomo.names import resolve
from atomo.tables import listed

__all__ = ["DATASETS", "Dataset", "Source", "Split", "epoch_seed", "load_dataset"]

SOURCES: list[Source] = listed(
    __name__,
    "digits:DIGITS",
    "mnist:MNIST",
    "cifar:CIFAR10",
    "cifar:CIFAR100",
    "svhn:SVHN",
    "imagenet:IMAGENET",
    "imagenette:IMAGENETTE",
    "folder:FOLDER",
    "noise:NOISE",
)
DATASETS: Mapping[str, Source] = MappingProxyType({source.name: source for source in SOURCES})


def load_dataset(name: str, data_dir: Path, image_size: int | None = None) -> Dataset:
    """Loads a data set that is already on disk; nothing is fetched.

    >>> load_dataset("digits", Path("unused")).input_shape
    (1, 32, 32)

    Args:
        name: a key of `DATASETS`, in any case, with or without `-` and `_`.
        data_dir: the folder that holds the data sets; `docs/data.md` draws what each one expects.
        image_size: pixels a side, for data sets of images of any size (ImageNet, Folder).

    Raises:
        ConfigError: no data set has this name, or it does not come in this image size.
        DataError: it is not in `data_dir`, or what is there is damaged.
    """
    return DATASETS[resolve("data set", name, DATASETS)].load(data_dir, image_size)
