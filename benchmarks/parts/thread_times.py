"""Processor time of this process by thread, from Linux's accounts of tasks."""

import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["difference", "thread_times"]

TASKS: Final = Path("/proc/self/task")
NS: Final = 1e-6  # milliseconds


def thread_times() -> dict[str, float]:
    """Returns milliseconds of processor time, by the name of a thread; threads of one name are
    added up.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    times: dict[str, float] = defaultdict(float)
    for task in TASKS.iterdir():
        name = names.get(int(task.name)) or (task / "comm").read_text().strip()
        times[name] += NS * int((task / "schedstat").read_text().split()[0])
    return dict(times)


def difference(before: Mapping[str, float], after: Mapping[str, float], steps: int) -> str:
    """Returns the milliseconds of a step, by thread, the longest first."""
    rows = {name: (ms - before.get(name, 0.0)) / steps for name, ms in after.items()}
    longest = sorted(rows.items(), key=lambda row: -row[1])
    return ", ".join(f"{name} {ms:.1f}" for name, ms in longest if ms >= 0.05)
