"""Files that anyone may have put there: opened where they are plain files, and bounded in size.

A run folder may come from a stranger, with a link, a pipe or a device under the name of a file that
a run reads or writes. Nothing in it is opened through a link: `open_plain` and `read_whole` read,
`open_own` opens a file that a run adds to, `create_plain` makes a new file, and `check_target`
comes before a rename. A file that a person names, such as `--config`, may be a link: `linked` says
so; `read_text` also reads a pipe.
"""

import errno
import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

__all__ = [
    "MAX_JSON_BYTES",
    "check_target",
    "create_plain",
    "make_folder",
    "memory_bytes",
    "open_own",
    "open_plain",
    "read_start",
    "read_text",
    "read_whole",
]

MAX_JSON_BYTES: Final = 2**28  # bytes of JSON
MOST_TEXT: Final = 2**24  # bytes of a file that a person writes
GROWTH: Final = 2**20  # bytes that are added to a file between a look at its size and its end
PIPE_S: Final = 60.0  # more => a slower command may write to a pipe
KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip
# Opening a pipe or a device does not block.
PLAIN: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def open_plain(path: Path, *, linked: bool = False) -> Iterator[BinaryIO]:
    """Opens the file at `path` to read it; `linked`: also through a link.

    Raises:
        OSError: the file cannot be opened, or is no file.
    """
    descriptor = plain(path, os.O_RDONLY, linked=linked)
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_whole(path: Path, limit: int = MAX_JSON_BYTES, *, linked: bool = False) -> bytes:
    """Reads all of a file of at most `limit` bytes.

    Raises:
        OSError: the file cannot be read, is no file, or is larger.
    """
    with open_plain(path, linked=linked) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes; at most {limit} are read", str(path))
        # It may have grown. As much memory as is asked for is taken before anything is read.
        return file.read(min(limit, size + GROWTH))


def read_start(path: Path, limit: int) -> bytes:
    """Reads the first bytes of a file, at most `limit`.

    Raises:
        OSError: the file cannot be read, or is no file.
    """
    with open_plain(path) as file:
        return file.read(limit)


def read_text(path: Path, limit: int = MOST_TEXT) -> str:
    """Reads all of a file in UTF-8 that a person named, also through a link, or of a pipe.

    In a shell, `--config <(command)` names a pipe.

    Raises:
        OSError: the file cannot be read, is no file, has more than `limit` bytes, or no process
            writes to the pipe.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return (
        read_pipe(path, limit) if is_pipe(path) else read_whole(path, limit, linked=True)
    ).decode()


def is_pipe(path: Path) -> bool:
    """True if `path` is a pipe, or a link to a pipe."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:  # the later read raises the error
        return False


@cache
def read_pipe(path: Path, limit: int) -> bytes:
    """Reads a pipe to its end, once in a process: then nothing is left in it.

    Raises:
        OSError: the pipe has more than `limit` bytes, or nothing came for `PIPE_S`.
    """
    descriptor, data = os.open(path, os.O_RDONLY | PLAIN), bytearray()
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    try:
        while len(data) <= limit:
            # Without a writer, or before the writer opens the pipe, a read would end immediately.
            if not ready.poll(1e3 * PIPE_S):
                raise OSError(errno.ETIMEDOUT, f"nothing came in {PIPE_S:g} s", str(path))
            if not (part := os.read(descriptor, 2**16)):
                return bytes(data)
            data += part
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))


def open_own(path: Path, flags: int) -> int:
    """Opens a file of a run to read and to write it, and returns its descriptor.

    Args:
        path: the file.
        flags: of `os.open`, for example O_CREAT and O_APPEND.

    Raises:
        OSError: the file cannot be opened, is no file, or has another name too: a hard link leads
            to it.
    """
    descriptor = plain(path, os.O_RDWR | flags)
    try:
        check_names(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def create_plain(path: Path) -> Iterator[BinaryIO]:
    """Makes a new file at `path` to write it, in place of one that was there.

    Raises:
        OSError: the file cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        path.unlink()  # of a process of this number that was killed, or a stranger's
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        yield file


def check_target(path: Path) -> None:
    """Checks before a rename that a plain file, or nothing, is at `path`.

    Raises:
        OSError: something else is there.
    """
    with suppress(FileNotFoundError):
        check_kind(path, os.lstat(path).st_mode)


def make_folder(path: Path) -> Path:
    """Makes a folder within a run folder, unless it is there, and returns it.

    Raises:
        OSError: the file cannot be made, or something else is there, such as a link to a folder.
    """
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(mode := os.lstat(path).st_mode):
        name = next((name for is_kind, name in KINDS if is_kind(mode)), "a file")
        raise OSError(errno.ENOTDIR, f"it is {name}, not a folder", str(path))
    return path


def memory_bytes() -> int:
    """Returns the size of this machine's memory: no file larger than that can be read whole."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def plain(path: Path, flags: int, *, linked: bool = False) -> int:
    """Opens a plain file and returns its descriptor.

    Raises:
        OSError: the file cannot be opened, or is no file.
    """
    try:
        descriptor = os.open(path, flags | PLAIN | (0 if linked else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            with suppress(FileNotFoundError):
                check_kind(path, os.lstat(path).st_mode)
        raise
    try:
        # The kind of the open file, not of the path: another file may have this name by now.
        check_kind(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_kind(path: Path, mode: int) -> None:
    """Raises OSError unless a mode is that of a plain file."""
    for is_kind, name in KINDS:
        if is_kind(mode):
            raise OSError(errno.EINVAL, f"it is {name}, not a file", str(path))


def check_names(path: Path, descriptor: int) -> None:
    """Raises OSError if an open file has several names: a hard link may belong to another user."""
    if (names := os.fstat(descriptor).st_nlink) > 1:
        raise OSError(
            errno.EMLINK, f"it has {names} names (hard links); copy it, and remove this one",
            str(path),
        )  # fmt: skip
