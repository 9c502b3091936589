"""Data sets that torchvision fetches, reads and verifies by MD5."""

from collections.abc import Sequence
from pathlib import Path

from torchvision.datasets.utils import check_integrity

from atomo.errors import DataError

__all__ = ["require_intact"]


def require_intact(name: str, folder: Path, checksums: Sequence[tuple[str, str]]) -> None:
    """Checks each file against its MD5, before anything is read from it.

    Raises:
        DataError: a file is missing or differs from the original.
    """
    for file, md5 in checksums:
        path = folder / file
        if not path.is_file():
            raise DataError(f"{name} is incomplete: {path} is missing")
        if not check_integrity(str(path), md5):
            raise DataError(f"{path} is damaged: it differs from {name}'s (MD5 {md5}); delete it")
