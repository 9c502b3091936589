"""The run folder: one flat folder that the hosts of a run share, often over NFS.

Files that belong together are written under temporary names in the folder itself, synced, and then
renamed. The file that vouches for the others is renamed last: a reader sees all of them or none,
and a full disk changes nothing. Readers open files by path, and retry for a while after ENOENT and
ESTALE, by which NFS says "not visible yet" and "replaced on another host".
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
Wait = Callable[[float], None]  # sleeps for a number of seconds

TEMPORARY = ".tmp"
PATIENCE_S = 30.0  # an NFS client caches the attributes of a folder for that long
RETRY_S = 0.25
TRANSIENT = frozenset({errno.ENOENT, errno.ESTALE})
TAKEN = frozenset({errno.EINVAL, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})


@final
class Staging:
    """Files that appear together. Leaving the `with` block removes unpublished files."""

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
        """Writes `data` to the disk under a temporary name.

        Raises:
            CheckpointError: the file cannot be written; existing files are unchanged.
        """
        self.write_pieces(name, [data], len(data))

    def write_pieces(self, name: str, pieces: Iterable[bytes | memoryview], size: int) -> None:
        """Writes `size` bytes of data in pieces, which need not all be in memory together."""
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
            CheckpointError: a file cannot be renamed, or its name belongs to a folder or a link.
        """
        for name in self._staged:
            with explained(self._folder / name, 0):
                check_target(self._folder / name)
        *data_names, seal = self._staged
        with explained(self._folder / seal, 0):
            if data_names:
                # An older seal must not vouch for a mixture of old and new files.
                (self._folder / seal).unlink(missing_ok=True)
                self._rename(data_names)
            self._rename([seal])

    def _rename(self, names: list[str]) -> None:
        for name in names:
            self._staged[name].replace(self._folder / name)
        sync_folder(self._folder)


def sync(file: BinaryIO) -> None:
    """Writes the data of `file` to the disk, or to the file server's disk, before it returns."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Writes the names in `folder` to the disk before it returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def probe(target: Path, needed: int) -> None:
    """Checks that the folder of `target` can be written, and has `needed` bytes free.

    Raises:
        CheckpointError: the folder cannot be written, or has less space.
    """
    path = target.with_name(f".probe.{os.getpid()}{TEMPORARY}")
    with explained(target, needed):
        try:
            with create_plain(path) as file:
                file.write(b"\n")
                sync(file)
            if shutil.disk_usage(target.parent).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def explained(path: Path, needed: int) -> Iterator[None]:
    """Translates an OSError of a write of `needed` bytes into CheckpointError."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}{room(path, needed, error)}; "
            "the checkpoints already written are intact"
        ) from error


def room(path: Path, needed: int, error: OSError) -> str:
    """Returns the bytes needed and free for a file; empty if its name belongs to something else."""
    if error.errno in TAKEN:
        return ""
    return f" ({needed} bytes needed, {room_left(path, error)})"


def room_left(path: Path, error: OSError) -> str:
    """Returns the limit or the free bytes for a file that cannot be written."""
    limit = file_limit()
    if error.errno == errno.EFBIG and limit is not None:
        return f"{limit} allowed by `ulimit -f`"
    return f"{free(path.parent)} free"


def free(folder: Path) -> str:
    """Returns the free bytes on the disk of `folder`."""
    try:
        return str(shutil.disk_usage(folder).free)
    except OSError:
        return "unknown"


def patiently(attempt: Callable[[], T], patience_s: float, wait: Wait) -> T:
    """Returns the result of `attempt`; repeats it while NFS may not show the file yet.

    Raises:
        OSError: `attempt` fails for another reason, or still fails after `patience_s`.
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
        CheckpointError: the file exists, but cannot be read.
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
    """Returns the names in `folder`, sorted; an empty list if the folder does not exist.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    return sorted(present(folder, os.listdir, patience_s, wait) or [])


def decoded(text: bytes) -> Any:
    """Returns the JSON value in `text`, or None if it is not JSON; never raises."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError):
        return None
