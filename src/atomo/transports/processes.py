"""Processes of this host, identified by number and start time, as the kernel reuses numbers."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

__all__ = ["ProcessId", "cpu_time_s", "is_running", "is_stuck", "kill", "own_process"]

STUCK: Final = "TtD"  # states: stopped by a signal, by a debugger, uninterruptible sleep


@final
@dataclass(frozen=True)
class ProcessId:
    """Identity of a process on its host."""

    pid: int
    started: int
    """Start time in clock ticks since boot; 0: unknown."""


def own_process() -> ProcessId:
    """Returns the identity of this process."""
    return ProcessId(os.getpid(), started(os.getpid()))


def started(pid: int) -> int:
    """Returns the start time of a process; 0 if there is no such process or the system does not
    report it.
    """
    fields = status(pid)
    return int(fields[19]) if fields else 0


def status(pid: int) -> list[str]:
    """Returns the fields of `/proc/PID/stat` from the state on; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_time_s(process: ProcessId) -> float | None:
    """Returns the processor time of a process and all its threads, seconds; None: it is gone."""
    fields = status(process.pid)
    if not fields or int(fields[19]) != process.started:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(process: ProcessId) -> bool:
    """True if the process is alive. A process with the same number and another start time is a
    different one.
    """
    return process.started > 0 and started(process.pid) == process.started


def is_stuck(process: ProcessId) -> bool:
    """True if a process is stopped or blocked inside the kernel and cannot act by itself."""
    return is_running(process) and any(state in STUCK for state in status(process.pid)[:1])


def kill(process: ProcessId) -> None:
    """Kills a process, even if it is stopped; does nothing if it is gone."""
    if is_running(process):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process.pid, signal.SIGKILL)
