"""The run folder: one flat folder that the hosts of a run share, often over NFS.

Files that belong together are written under temporary names in the folder itself, synced, and only
then renamed, the one that vouches for the others last: a reader sees all of them or nothing, and a
full disk leaves everything as it was. Readers open by path, and again by path for a while after
ENOENT and ESTALE, which is how NFS says "not visible yet" and "replaced on another host".
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, final

from atomo.core.process.file_limit import file_limit
from atomo.core.safe_read import check_target, create_plain
from atomo.errors import CheckpointError

__all__ = [
    "PATIENCE_S",
    "Staging",
    "Wait",
    "decoded",
    "explained",
    "names",
    "patiently",
    "present",
    "probe",
    "sync",
    "sync_folder",
]

T = TypeVar("T")
Wait = Callable[[float], None]  # sleeps that many seconds

TEMPORARY = ".tmp"
PATIENCE_S = 30.0  # an NFS client trusts what it last heard about a folder for that long
RETRY_S = 0.25
TRANSIENT = frozenset({errno.ENOENT, errno.ESTALE})
TAKEN = frozenset({errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})


@final
class Staging:
    """Files that appear together. Leaving the `with` block removes what was not published."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staged: dict[str, Path] = {}

    def __enter__(self) -> "Staging":
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._staged.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Puts `data` on the disk under a temporary name.

        Raises:
            CheckpointError: it cannot be written; nothing that was there before has changed.
        """
        self.write_pieces(name, [data], len(data))

    def write_pieces(self, name: str, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """Returns the same of data of `size` bytes in pieces, which need not all be
        there at once.
        """
        path = self._folder / f".{name}.{os.getpid()}{TEMPORARY}"
        self._staged[name] = path
        with explained(self._folder / name, size):
            self._folder.mkdir(parents=True, exist_ok=True)
            with create_plain(path) as file:
                file.writelines(pieces)
                sync(file)

    def publish(self) -> None:
        """Gives the files their names, in the order written; the last vouches for the others.

        Raises:
            CheckpointError: a file cannot be renamed, or what has its name is no file.
        """
        for name in self._staged:
            with explained(self._folder / name, 0):
                check_target(self._folder / name)
        *others, seal = self._staged
        with explained(self._folder / seal, 0):
            if others:
                # An older seal must not vouch for a mixture of old and new files.
                (self._folder / seal).unlink(missing_ok=True)
                self._rename(others)
            self._rename([seal])

    def _rename(self, names: list[str]) -> None:
        for name in names:
            self._staged[name].replace(self._folder / name)
        sync_folder(self._folder)


def sync(file: BinaryIO) -> None:
    """Returns when what was written to `file` is on the disk, or on the server's."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Returns when the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def probe(wanted: Path, needed: int) -> None:
    """Sees whether the folder of `wanted` can be written, and has room for its `needed` bytes.

    Raises:
        CheckpointError: it cannot, or has not.
    """
    path = wanted.with_name(f".probe.{os.getpid()}{TEMPORARY}")
    with explained(wanted, needed):
        try:
            with create_plain(path) as file:
                file.write(b"\n")
                sync(file)
            if shutil.disk_usage(wanted.parent).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Translates what the system says about a failed write of `needed` bytes."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}{room(path, needed, error)}; "
            "the checkpoints already written are intact"
        ) from error


def room(path: Path, needed: int, error: OSError) -> str:
    """Returns the bytes needed and left for a file; empty where something else is in its place."""
    if error.errno in TAKEN:
        return ""
    return f" ({needed} bytes needed, {room_left(path, error)})"


def room_left(path: Path, error: OSError) -> str:
    """Returns the bytes that there were for a file that cannot be written."""
    limit = file_limit()
    if error.errno == errno.EFBIG and limit is not None:
        return f"{limit} allowed by `ulimit -f`"
    return f"{free(path.parent)} free"


def free(folder: Path) -> str:
    """Returns the bytes left on the disk that holds `folder`."""
    try:
        return str(shutil.disk_usage(folder).free)
    except OSError:
        return "unknown"


def patiently(attempt: Callable[[], T], patience_s: float, wait: Wait) -> T:
    """Returns the result of `attempt`, and repeats it while the file may only be late.

    Raises:
        OSError: it fails for another reason, or still fails after `patience_s`.
    """
    waited_s = 0.0
    while True:
        try:
            return attempt()
        except OSError as error:
            if error.errno not in TRANSIENT or waited_s >= patience_s:
                raise
        wait(RETRY_S)
        waited_s += RETRY_S


def present(path: Path, read: Callable[[Path], T], patience_s: float, wait: Wait) -> T | None:
    """Returns the result of `read` on `path`; None if there is no file.

    Raises:
        CheckpointError: something is there, and cannot be read.
    """

    def attempt() -> T | None:
        try:
            return read(path)
        except FileNotFoundError:
            return None

    try:
        return patiently(attempt, patience_s, wait)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def names(folder: Path, patience_s: float = PATIENCE_S, wait: Wait = time.sleep) -> list[str]:
    """Returns the names in `folder`, sorted; none when it does not exist.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    return sorted(present(folder, os.listdir, patience_s, wait) or [])


def decoded(text: bytes) -> Any:
    """Returns the JSON value in `text`, or None when there is none; never raises."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        return None
