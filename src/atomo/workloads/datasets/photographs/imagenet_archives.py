"""ImageNet's archives, as they are given out, become folders.

`ILSVRC2012_img_train.tar` holds an archive a class; `ILSVRC2012_img_val.tar` images alone. Their
classes are in `ILSVRC2012_devkit_t12.tar.gz`.
"""

import shutil
import tarfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

from atomo.errors import DataError

__all__ = ["ARCHIVES", "unpack_archives"]

TRAIN: Final = "ILSVRC2012_img_train.tar"
VAL: Final = "ILSVRC2012_img_val.tar"
KIT: Final = "ILSVRC2012_devkit_t12.tar.gz"
ARCHIVES: Final = (TRAIN, VAL, KIT)
TRUTH: Final = "data/ILSVRC2012_validation_ground_truth.txt"
CLASSES: Final = "data/meta.mat"


def unpack_archives(root: Path) -> bool:
    """Makes `root`/train/CLASS/* and `root`/val/CLASS/* from the archives in `root`.

    A folder that is there is left alone; one that is not whole has another name. The archives stay.

    Returns:
        Whether the archives are there.

    Raises:
        DataError: an archive is damaged, or archives contradict each other.
    """
    if not all((root / name).is_file() for name in ARCHIVES):
        return False
    try:
        for name, images in (("train", train_images(root)), ("val", val_images(root))):
            if not (root / name).exists():
                write(root / f"{name}.part", images)
                (root / f"{name}.part").rename(root / name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"cannot unpack ImageNet's archives in {root}: {error}") from error
    return True


def write(folder: Path, images: Iterator[tuple[str, str, bytes]]) -> None:
    """Writes images into new folders of their classes."""
    shutil.rmtree(folder, ignore_errors=True)
    for label, name, content in images:
        if any("/" in part or part.startswith(".") for part in (label, name)):
            raise DataError(f"ImageNet's archives name {label!r}, {name!r}: no class and image")
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / name).write_bytes(content)


def members(archive: Path | BytesIO) -> Iterator[tuple[str, bytes]]:
    """Yields the files of an archive, in its order, by their last names."""
    opened = archive.open("rb") if isinstance(archive, Path) else archive
    with opened, tarfile.open(fileobj=opened) as tar:
        for member in tar:
            if member.isreg() and (file := tar.extractfile(member)):
                yield Path(member.name).name, file.read()


def train_images(root: Path) -> Iterator[tuple[str, str, bytes]]:
    for name, archive in members(root / TRAIN):
        for image, content in members(BytesIO(archive)):  # of a class: some 100 MB
            yield Path(name).stem, image, content


def val_images(root: Path) -> Iterator[tuple[str, str, bytes]]:
    labels, count = truth(root / KIT), 0
    for image, content in members(root / VAL):
        number = Path(image).stem.rpartition("_")[2]  # ILSVRC2012_val_00000001.JPEG
        if not number.isdecimal() or len(number) > 18 or not 1 <= int(number) <= len(labels):
            raise DataError(f"{root / VAL}: {image} is none of the {len(labels)} images of {KIT}")
        yield labels[int(number) - 1], image, content
        count += 1
    if count != len(labels):
        raise DataError(f"{root / VAL} holds {count} images; {KIT} has labels of {len(labels)}")


def truth(kit: Path) -> list[str]:
    """Returns the folder of each image for validation, in the order of their numbers."""
    parts = dict.fromkeys((TRUTH, CLASSES), b"")
    with tarfile.open(kit) as tar:
        for member in tar:
            for name in parts:
                if member.name.endswith(name) and (file := tar.extractfile(member)):
                    parts[name] = file.read()
    if absent := [name for name, content in parts.items() if not content]:
        raise DataError(f"{kit} lacks {absent[0]}")
    folders = class_folders(kit, parts[CLASSES])
    try:
        return [folders[int(line)] for line in parts[TRUTH].split()]
    except (KeyError, ValueError) as error:
        raise DataError(f"{kit}: {TRUTH} has a class that {CLASSES} lacks: {error}") from error


def class_folders(kit: Path, matlab: bytes) -> dict[int, str]:
    """Returns the folder of each class, by its number."""
    from scipy.io import loadmat  # scikit-learn brings it; slow to import

    try:
        rows = loadmat(BytesIO(matlab), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}
    except Exception as error:  # the package lets any error of damaged bytes through
        raise DataError(f"{kit}: {CLASSES} cannot be read: {error}") from error
