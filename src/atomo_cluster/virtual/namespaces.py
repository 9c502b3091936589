"""Namespaces: making them, entering them, and finding their processes."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atomo_cluster.errors import Failed, Refused
from atomo_cluster.virtual.programs import find
from atomo_cluster.virtual.spec import ClusterFolder

__all__ = ["Process", "end", "enter", "first_holder", "holders", "processes_inside", "unshare"]

PROC = Path("/proc")
PATIENCE_S = 30.0  # for the kernel to take a process away
POLL_S = 0.01


@dataclass(frozen=True)
class Process:
    """A process, as seen from outside."""

    pid: int
    command: str


def unshare(*kinds: str, own_user: bool = False) -> list[str]:
    """Returns the command prefix that makes a command the first process of new namespaces.

    The command ends with the process that waits for it; a PID namespace ends with its first one.
    """
    user = ["--user", "--map-root-user"] if own_user else []
    options = [f"--{kind}" for kind in (*kinds, "mount", "pid", "fork", "mount-proc", "kill-child")]
    return [find("unshare") or "unshare", *user, *options]


def enter(pid: int, *kinds: str) -> None:
    """Moves this process into namespaces of another; of PID namespaces, only its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = [path for kind in kinds if differs(path := PROC / str(pid) / "ns" / kind)]
    files = [os.open(path, os.O_RDONLY) for path in paths]  # all, before /proc is another's
    for path, file in zip(paths, files, strict=True):
        if libc.setns(file, 0):
            reason = os.strerror(ctypes.get_errno())
            raise Failed(f"cannot enter {path}: {reason}; the user who made the cluster can")
        os.close(file)


def differs(path: Path) -> bool:
    """True if a namespace differs from that of this process."""
    return not path.samefile(PROC / "self" / "ns" / path.name)


def processes() -> Iterator[tuple[int, list[str]]]:
    """Yields every process that has a command line, with its words."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                words = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
                yield int(entry.name), [os.fsdecode(word) for word in words]


def holders(place: ClusterFolder, host: str | None = None) -> list[int]:
    """Lists the processes that hold the namespaces of a host or, without host, of the switch."""
    tail = ["host", str(place.folder), host] if host else ["switch", str(place.folder)]
    return [pid for pid, words in processes() if words[-len(tail) :] == tail]


def first_holder(place: ClusterFolder, host: str | None = None) -> int | None:
    """Returns the first process in the namespaces of a host or the switch; None if it is gone."""
    return next((pid for pid in holders(place, host) if innermost(pid) == 1), None)


def innermost(pid: int) -> int | None:
    """Returns the process id of a process in its own PID namespace."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def processes_inside(pid: int) -> list[Process]:
    """Lists the processes in the PID namespace of `pid`, without it and its sshd."""
    pids = []
    for pid_outside, words in processes():
        with suppress(OSError):
            same = (PROC / str(pid_outside) / "ns" / "pid").samefile(PROC / str(pid) / "ns" / "pid")
            command = " ".join(words).strip()
            if same and pid_outside != pid and command and not command.startswith("sshd: /"):
                pids.append(Process(pid_outside, command))
    return pids


def end(pids: Sequence[int]) -> None:
    """Kills processes and waits for their end; the first process of a namespace ends all in it.

    Raises:
        Refused: they belong to another user.
        Failed: they do not end.
    """
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise Refused(f"process {pid} is another user's: {error}") from error
    deadline = time.monotonic() + PATIENCE_S
    while any(running(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise Failed(
                f"of the processes {list(pids)} some are there {PATIENCE_S:g} s after SIGKILL"
            )
        time.sleep(POLL_S)


def running(pid: int) -> bool:
    """True if a process exists and is not a zombie."""
    with suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
