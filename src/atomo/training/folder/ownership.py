"""Ownership of a folder: one process at a time writes in it.

The right is a lock file in the folder. The owner locks the file with flock: the kernel releases the
lock when the process ends, and NFS forwards it to the server. The file names its owner, which
renews the file's time every few seconds. An owner counts as dead

* on the same host, as soon as its process has ended: the lock shows it or, in a file system
  without locks, the process's number and start time;
* on another host, if the file was not renewed for `LEASE_S`, by the clock of the file server.

An owner that was unreachable for that long learns it from `check`, before its next checkpoint. If
no other process owns the folder, but the lock file is missing, the owner locks it again: a removed
folder is created again. If the folder's file system is no longer mounted, the owner waits for it,
since a later mount would hide files that were written in its place.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from atomo.core.safe_read import open_own
from atomo.core.visible import visible
from atomo.errors import CheckpointError
from atomo.training.folder.lock_file import (
    EVALUATOR,
    LEASE_S,
    LONGEST,
    RUN,
    FolderTaken,
    Right,
    holder_of,
    lock,
    opened,
)
from atomo.training.folder.lock_owner import LockOwner, parse, this_process
from atomo.training.folder.run_folder import PATIENCE_S, Wait, explained, patiently

__all__ = ["EVALUATOR", "LEASE_S", "RUN", "FolderGone", "FolderTaken", "Ownership", "Right", "own"]

RENEWAL_S = 15.0


class FolderGone(CheckpointError):
    """The folder is missing now; no other process owns it."""


@final
class Ownership:
    """A right to a folder, from `own` to the end of a `with` block."""

    def __init__(self, path: Path, descriptor: int, right: Right) -> None:
        self._path, self._descriptor, self._right = path, descriptor, right
        self._me, self._disk = this_process(), os.fstat(descriptor).st_dev
        self._over = threading.Event()
        os.ftruncate(descriptor, os.pwrite(descriptor, self._me.encoded(), 0))
        self._renewer = threading.Thread(target=self._renew, name=right.file, daemon=True)
        self._renewer.start()

    def __enter__(self) -> "Ownership":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._renewer.join()
        if self._is_mine():
            with suppress(OSError):
                self._path.unlink()
        os.close(self._descriptor)

    def check(self) -> None:
        """Checks that this process still owns the folder; locks a lost lock file again.

        Raises:
            FolderTaken: this process was unreachable for so long that another process took over.
            FolderGone: the folder was moved, or its file system is not mounted.
            CheckpointError: the lock file cannot be written.
        """
        if self._is_mine():
            return
        now = holder_of(self._path)
        if now is not None and now != self._me:
            raise FolderTaken(
                f"{self._path.parent} is no longer this process's: {now}; nothing more is written "
                "there"
            )
        with explained(self._path, LONGEST):
            self._regain(now is not None)

    def _regain(self, named: bool) -> None:
        """Locks a folder again that no other process owns.

        Args:
            named: True if the lock file still names this process.
        """
        folder = self._path.parent
        if not named and self._was_moved():
            raise FolderGone(f"{folder} is gone: it was moved away, or its file system was")
        parent = next(path for path in (folder, *folder.parents) if path.exists())
        if not named and os.stat(parent).st_dev != self._disk:
            raise FolderGone(f"{folder} is gone: {parent} is on another file system than it was")
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = self._relocked(named)
        try:
            os.ftruncate(descriptor, os.pwrite(descriptor, self._me.encoded(), 0))
            os.dup2(descriptor, self._descriptor, inheritable=False)  # the renewer uses it
            self._disk = os.fstat(descriptor).st_dev
        finally:
            os.close(descriptor)

    def _relocked(self, named: bool) -> int:
        if named:  # another handle of the same file, which may have lost its lock
            same_file = open_own(self._path, os.O_SYNC)
            lock(same_file)
            return same_file
        while (descriptor := opened(self._path, self._right)) is None:
            pass
        return descriptor

    def _was_moved(self) -> bool:
        """Returns True if the lock file still exists, but in another folder."""
        try:
            return os.fstat(self._descriptor).st_nlink > 0 and not self._path.parent.is_dir()
        except OSError:
            return False

    def follow(self, folder: Path) -> None:
        """Follows a renamed folder to its new name."""
        self._path = folder / self._path.name

    def _is_mine(self) -> bool:
        try:
            named, own = os.lstat(self._path), os.fstat(self._descriptor)
            text = os.pread(self._descriptor, LONGEST, 0)
        except OSError:
            return False
        return os.path.samestat(named, own) and parse(text) == self._me

    def _renew(self) -> None:
        while not self._over.wait(RENEWAL_S):
            with suppress(OSError):  # the file server may be unreachable for a while
                os.utime(self._descriptor)


def own(
    folder: Path,
    right: Right,
    say: Callable[[str], object] | None = None,
    *,
    patience_s: float = PATIENCE_S,
    wait: Wait = time.sleep,
) -> Ownership:
    """Takes a right to a folder that exists.

    Args:
        folder: an existing folder.
        right: the right to take.
        say: receives a message if the right is taken over from a dead owner; None: stderr.
        patience_s: the longest wait until NFS shows the folder.
        wait: sleeps for a number of seconds.

    Raises:
        FolderTaken: another process has the right; the error names the process.
        CheckpointError: the lock file cannot be written.
    """
    path = folder / right.file
    with explained(path, LONGEST):
        owner, before = patiently(lambda: attempt(path, right), patience_s, wait)
    if before is not None:
        report = say or sys.stderr.write
        report(visible(f"atomo: {folder} was held by {before}, which is gone: taken over\n"))
    return owner


def attempt(path: Path, right: Right) -> tuple[Ownership, LockOwner | None]:
    """Returns the right, and the dead owner that the lock file named, if any."""
    while (descriptor := opened(path, right)) is None:
        pass  # the owner has just removed the file
    try:
        before = parse(os.pread(descriptor, LONGEST, 0))
        return Ownership(path, descriptor, right), before
    except BaseException:
        os.close(descriptor)
        raise
