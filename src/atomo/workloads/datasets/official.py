"""Data sets that torchvision fetches, reads and verifies by MD5.

It is imported where it is needed: that takes as long as torch itself, in every process of a run,
and the data of most runs does without it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atomo.errors import DataError

__all__ = ["original", "require_intact"]


def original(name: str) -> Any:
    """Returns torchvision's class of this name: it knows where the files are and how to
    read them.
    """
    from torchvision import datasets

    return getattr(datasets, name)


def require_intact(name: str, folder: Path, checksums: Sequence[tuple[str, str]]) -> None:
    """Checks each file against its MD5, before anything is read from it.

    Raises:
        DataError: a file is missing or differs from the original.
    """
    from torchvision.datasets.utils import check_integrity

    for file, md5 in checksums:
        path = folder / file
        if not path.is_file():
            raise DataError(f"{name} is incomplete: {path} is missing")
        if not check_integrity(str(path), md5):
            raise DataError(f"{path} is damaged: it differs from {name}'s (MD5 {md5}); delete it")
