"""Reading a file that anyone may have put there: it may be no file at all, or without end."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["MOST", "opened", "read_whole"]

MOST: Final = 2**28  # bytes of JSON
KINDS: Final = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file at `path`, to be read. Nothing else is waited for: opening a pipe would.

    Raises:
        OSError: it cannot be opened, or is no file.
    """
    # What is there is asked of what was opened: by name it may be another thing a moment later.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        for is_kind, name in KINDS:
            if is_kind(mode):
                raise OSError(errno.EINVAL, f"it is {name}, not a file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_whole(path: Path, most: int = MOST) -> bytes:
    """All of a file of at most `most` bytes.

    Raises:
        OSError: it cannot be read, is no file, or is larger.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes; at most {most} are read", str(path))
        return file.read(most)  # it may have grown
