"""The lock of a launch: one at a time for each cluster on this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from atomo_cluster.errors import ConfigError, NotReady

__all__ = ["launch_lock"]

NAME: Final = "launch.lock"
LONGEST: Final = 200  # characters of the holder's note


@contextmanager
def launch_lock(state: Path, cluster: str) -> Iterator[None]:
    """Holds the lock of a cluster's launches during the block.

    `state` is the local folder of the cluster. The kernel releases the lock of a process that ends
    in whatever way. A launch on another machine is found by its tags, once its hosts are there.

    Raises:
        NotReady: another process holds it.
        ConfigError: the file cannot be written.
    """
    path = state / NAME
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: {error}; choose another state_dir") from error
    try:
        take(file, path, cluster)
        yield
    finally:
        os.close(file)


def take(file: int, path: Path, cluster: str) -> None:
    """Locks the file, and writes into it who does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, LONGEST, 0).decode(errors="replace").strip() or "unknown"
        raise NotReady(
            f"another launch of {cluster} is under way on this machine ({holder}), and nothing was "
            f"launched here; wait until it has ended, and see `status` ({path})"
        ) from None
    os.truncate(file, 0)
    since = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds")
    os.pwrite(file, f"process {os.getpid()}, since {since}\n".encode(), 0)
