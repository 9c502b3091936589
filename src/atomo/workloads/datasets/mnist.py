"""MNIST (LeCun et al., "Gradient-based learning applied to document recognition", 1998)."""

from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

from jaxtyping import UInt8
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.datasets.arrays import ArraySplit, Normalisation, in_memory
from atomo.workloads.datasets.base import Dataset, DatasetSource, missing, require_size
from atomo.workloads.datasets.idx import read_idx
from atomo.workloads.datasets.official import original

__all__ = ["MNIST"]

SHAPE = (1, 28, 28)
CLASSES = 10
NORMALISATION = Normalisation((0.1307,), (0.3081,))
TRAIN = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def load(data_dir: Path, image_size: int | None) -> Dataset:
    """Reads the four original files, gzipped or not, from the first folder that holds them all."""
    require_size("MNIST", SHAPE, image_size)
    folders = [data_dir / "mnist", data_dir / "MNIST" / "raw", data_dir]
    for folder in folders:
        files = [path for name in TRAIN + TEST if (path := find(folder, name))]
        if len(files) == 4:
            train, test = read_split(*files[:2]), read_split(*files[2:])
            return Dataset("MNIST", CLASSES, SHAPE, train, test)
    raise missing(MNIST, data_dir, [lacking(folder) for folder in folders])


def find(folder: Path, name: str) -> Path | None:
    """Returns one of the files, plain or gzipped."""
    candidates = folder / name, folder / f"{name}.gz"
    return next((path for path in candidates if path.is_file()), None)


def lacking(folder: Path) -> str:
    """Returns the first file that a folder lacks, for the message that MNIST is not there."""
    return f"{folder}/{next(name for name in TRAIN + TEST if not find(folder, name))}[.gz]"


def read_split(images: Path, labels: Path) -> ArraySplit:
    """Reads images and labels, and checks that they belong together."""
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)
    check(images, pixels, labels, classes)
    return ArraySplit(in_memory(pixels[:, None]), classes.long(), NORMALISATION)


def check(
    images: Path, pixels: UInt8[Tensor, "n h w"], labels: Path, classes: UInt8[Tensor, " m"]
) -> None:
    """Refuses files that are sound but not MNIST's."""
    if pixels.shape[1:] != SHAPE[1:] or not len(pixels):
        raise DataError(f"{images} holds images of shape {[*pixels.shape]}, not [n, 28, 28]")
    if len(classes) != len(pixels):
        raise DataError(f"{labels} holds {len(classes)} labels for {len(pixels)} images")
    if int(classes.max()) >= CLASSES:
        raise DataError(f"{labels} holds label {int(classes.max())}; the largest is {CLASSES - 1}")


def fetch(data_dir: Path) -> None:
    """Downloads the four files to `data_dir`/MNIST/raw, from the first mirror that answers."""
    *earlier, last = original("MNIST").mirrors
    for mirror in earlier:
        try:
            return fetch_from(mirror, data_dir / "MNIST" / "raw")
        except URLError:
            continue
    return fetch_from(last, data_dir / "MNIST" / "raw")


def fetch_from(mirror: str, folder: Path) -> None:
    """Downloads the four files from one mirror; torchvision verifies them."""
    from torchvision.datasets.utils import download_and_extract_archive

    for name, md5 in original("MNIST").resources:
        download_and_extract_archive(mirror + name, str(folder), filename=name, md5=md5)


def host() -> str:
    return " or ".join(str(urlsplit(mirror).hostname) for mirror in original("MNIST").mirrors)


MNIST = DatasetSource(
    name="MNIST",
    input_shape=SHAPE,
    classes=CLASSES,
    load=load,
    by_hand=f"{', '.join(TRAIN + TEST)} (each plain or with .gz) in {{data_dir}}/mnist",
    fetch=fetch,
    host=host,
)
