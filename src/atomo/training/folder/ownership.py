"""One process at a time writes in a folder; who else would is told which.

The right is a lock file there. It is locked with flock, which ends with its process however that
ends, and which NFS passes on to its server; and it names its holder, who renews the file's time
every few seconds. So a holder counts as gone

* on the same host as soon as its process is, by the lock, or, where the file system has no locks,
  by the process's number and start;
* on another host once the file has not been renewed for `LEASE_S`, told by the file server's
  own clock alone.

A holder that was cut off for so long finds out before its next checkpoint, by `check`. Where nobody
else has the folder, but the lock file is gone with it, the holder takes it again: a folder that was
removed is made anew, and one that lay on a file system that is not mounted now is waited for, since
what is written at its place meanwhile would be hidden later.
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
    """The folder is not there now; nobody else has it."""


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
        """Makes sure that the folder is still this process's, or is again.

        Raises:
            FolderTaken: this process was out of reach for so long that another has taken over.
            FolderGone: the folder was moved, or its file system is not there.
            CheckpointError: it cannot be written.
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
        """Takes a folder again that nobody else has; `named`: its lock file still says so."""
        folder = self._path.parent
        if not named and self._was_moved():
            raise FolderGone(f"{folder} is gone: it was moved away, or its file system was")
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if not named and os.stat(there).st_dev != self._disk:
            raise FolderGone(f"{folder} is gone: {there} is on another file system than it was")
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = self._relocked(named)
        try:
            os.ftruncate(descriptor, os.pwrite(descriptor, self._me.encoded(), 0))
            os.dup2(descriptor, self._descriptor, inheritable=False)  # which the renewer knows
            self._disk = os.fstat(descriptor).st_dev
        finally:
            os.close(descriptor)

    def _relocked(self, named: bool) -> int:
        if named:  # another handle of the same file: its lock is there, or comes with this one
            descriptor = open_own(self._path, os.O_SYNC)
            lock(descriptor)
            return descriptor
        while (found := opened(self._path, self._right)) is None:
            pass
        return found

    def _was_moved(self) -> bool:
        """True if the lock file is in a folder still, but not in this one."""
        try:
            return os.fstat(self._descriptor).st_nlink > 0 and not self._path.parent.is_dir()
        except OSError:
            return False

    def follow(self, folder: Path) -> None:
        """Goes with the folder, which has another name now."""
        self._path = folder / self._path.name

    def _is_mine(self) -> bool:
        try:
            there, mine = os.lstat(self._path), os.fstat(self._descriptor)
            text = os.pread(self._descriptor, LONGEST, 0)
        except OSError:
            return False
        return os.path.samestat(there, mine) and parse(text) == self._me

    def _renew(self) -> None:
        while not self._over.wait(RENEWAL_S):
            with suppress(OSError):  # the server may be away for a while
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
        folder: where.
        right: which.
        say: told when the right is taken over from a holder who is gone; None: stderr is.
        patience_s: how long NFS may take to show the folder.
        wait: sleeps that many seconds.

    Raises:
        FolderTaken: somebody else has it; the error names who.
        CheckpointError: the lock file cannot be written.
    """
    path = folder / right.file
    with explained(path, LONGEST):
        owner, before = patiently(lambda: attempt(path, right), patience_s, wait)
    if before is not None:
        tell = say or sys.stderr.write
        tell(visible(f"atomo: {folder} was held by {before}, which is gone: taken over\n"))
    return owner


def attempt(path: Path, right: Right) -> tuple[Ownership, LockOwner | None]:
    """Returns the right, and who has left it behind."""
    while (descriptor := opened(path, right)) is None:
        pass  # its holder has just let go of it, and of the file
    try:
        before = parse(os.pread(descriptor, LONGEST, 0))
        return Ownership(path, descriptor, right), before
    except BaseException:
        os.close(descriptor)
        raise
