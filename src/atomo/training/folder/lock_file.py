"""The lock file of a folder: it names the owner, and shows that the owner is still alive.

`atomo.training.folder.ownership` describes the protocol, and why it is safe on NFS.
"""

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from atomo.core.safe_read import create_plain, open_own, read_start
from atomo.errors import CheckpointError
from atomo.training.folder.lock_owner import LockOwner, parse, this_process
from atomo.training.folder.run_folder import TEMPORARY

__all__ = [
    "EVALUATOR",
    "LEASE_S",
    "LONGEST",
    "RUN",
    "FolderTaken",
    "Right",
    "holder_of",
    "lock",
    "opened",
]

LEASE_S = 90.0
LONGEST = 1024  # bytes of a lock file
NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@final
@dataclass(frozen=True)
class Right:
    """The right that a lock file gives."""

    file: str
    conflict: str
    """Message for a folder that another process owns, with the remedy in `fix`."""
    fix: str


RUN: Final = Right(
    "run.lock", "another run trains in", "wait for its end, end it, or give another --train-dir"
)
EVALUATOR: Final = Right(
    "evaluator.lock", "another evaluator writes evaluations.jsonl in", "leave it to it, or end it"
)


class FolderTaken(CheckpointError):
    """Another process has the right."""


def opened(path: Path, right: Right) -> int | None:
    """Opens the lock file if no other process owns it; returns None if it was replaced meanwhile.

    Raises:
        FolderTaken: another process owns it.
    """
    descriptor = open_own(path, os.O_CREAT | os.O_SYNC)
    try:
        locked = lock(descriptor)
        if not current(path, descriptor):
            os.close(descriptor)
            return None
        holder = parse(os.pread(descriptor, LONGEST, 0))
        if locked is False or (holder is not None and lives(holder, descriptor, path, locked)):
            raise taken(path, right, holder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock(descriptor: int) -> bool | None:
    """Tries to lock; returns True if this process has the lock, None without locks in the file
    system.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def current(path: Path, descriptor: int) -> bool:
    """Returns True if an open file still has its name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    return False


def lives(holder: LockOwner, descriptor: int, path: Path, locked: bool | None) -> bool:
    """Returns True if an owner without a lock may still write."""
    me = this_process()
    # If this process got the lock, no process of this host has it. For processes of other hosts
    # this holds only if the file system forwards locks; their lease decides.
    if locked and holder.boot == me.boot:
        return False  # one kernel has one view of its locks, whatever the file system
    if (holder.boot, holder.pids) == (me.boot, me.pids):
        return holder.runs()
    return age_s(descriptor, path) < LEASE_S


def age_s(descriptor: int, path: Path) -> float:
    """Returns the seconds since a file was renewed, by the clock of its file server."""
    probe = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with create_plain(probe) as now:
            now.write(b"\n")
            now.flush()
            os.utime(now.fileno())
            return os.fstat(now.fileno()).st_mtime - os.fstat(descriptor).st_mtime
    finally:
        probe.unlink(missing_ok=True)


def holder_of(path: Path) -> LockOwner | None:
    """Reads the owner that a lock file names."""
    with suppress(OSError):
        return parse(read_start(path, LONGEST))
    return None


def taken(path: Path, right: Right, holder: LockOwner | None) -> FolderTaken:
    """Returns an error that names the owner and the remedy."""
    owner = holder or "a process that has just begun"
    lease = ""
    if holder is not None and holder.boot != this_process().boot:
        lease = f"; if that host is gone, it is free {LEASE_S:g} s after its last sign of life"
    return FolderTaken(f"{right.conflict} {path.parent}: {owner}; {right.fix}{lease}")
