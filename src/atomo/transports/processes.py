"""Processes of this host, told apart from later ones that get the same number."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

__all__ = ["Identity", "is_stuck", "kill", "own_identity", "runs", "used_s"]

STUCK: Final = "TtD"  # states: stopped by a signal or a debugger, and in a call that does not end


@final
@dataclass(frozen=True)
class Identity:
    """A process of a host."""

    pid: int
    started: int
    """In ticks since the host came up; 0: not known."""


def own_identity() -> Identity:
    """Of this process."""
    return Identity(os.getpid(), started(os.getpid()))


def started(pid: int) -> int:
    """When a process began; 0: there is none, or this system does not say."""
    fields = status(pid)
    return int(fields[19]) if fields else 0


def status(pid: int) -> list[str]:
    """What the system says of a process, from its state on; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def used_s(process: Identity) -> float | None:
    """Processor time of a process and all its threads, seconds; None: it is not there."""
    fields = status(process.pid)
    if not fields or int(fields[19]) != process.started:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def runs(process: Identity) -> bool:
    """Whether a process is there: what has its number and began at another time is a stranger's."""
    return process.started > 0 and started(process.pid) == process.started


def is_stuck(process: Identity) -> bool:
    """Whether a process is stopped, or waits for the system: it cannot do anything by itself."""
    return runs(process) and any(state in STUCK for state in status(process.pid)[:1])


def kill(process: Identity) -> None:
    """Kills a process, even if it is stopped. One that is no longer there is left alone."""
    if runs(process):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, signal.SIGKILL)
