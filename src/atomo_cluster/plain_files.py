"""Files in folders that others may write to: neither read nor written through a link.

Another user may have put a link under the name of a file, to have this user's files read or
overwritten.
"""

import os
from io import BufferedWriter
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

__all__ = ["READABLE", "append_plain", "is_plain", "open_plain", "replace_plain"]

READABLE: Final = 0o644  # by everybody, such as the users of the published scripts
NO_LINK: Final = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
APPEND: Final = os.O_RDWR | os.O_APPEND | NO_LINK
AFRESH: Final = os.O_WRONLY | os.O_TRUNC | NO_LINK


def replace_plain(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a file in one step: a new file takes the place of the old one, or of a link.

    Raises:
        OSError: the file cannot be written.
    """
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as fresh:
        try:
            os.fchmod(fresh.fileno(), mode)
            fresh.write(text)
            fresh.close()
            os.replace(fresh.name, path)
        except BaseException:
            os.unlink(fresh.name)
            raise


def append_plain(path: Path) -> BufferedWriter:
    """Opens a file to add to it, and makes it if needed.

    Raises:
        OSError: the file cannot be opened, or is a link.
    """
    return os.fdopen(os.open(path, APPEND, 0o666), "ab")


def open_plain(path: Path) -> BufferedWriter:
    """Opens a file to write it from its start, such as the log of a process.

    Raises:
        OSError: the file cannot be opened, or is a link.
    """
    return os.fdopen(os.open(path, AFRESH, 0o666), "wb")


def is_plain(path: Path) -> bool:
    """True if a path is a file and no link."""
    return path.is_file() and not path.is_symlink()
