"""The owner of a lock file; a process on any host can check that the owner is still alive."""

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import final

from atomo.training.folder.run_folder import decoded

__all__ = ["LockOwner", "parse", "this_process"]

BOOT = Path("/proc/sys/kernel/random/boot_id")
PIDS = Path("/proc/self/ns/pid")


@final
@dataclass(frozen=True)
class LockOwner:
    """The process that owns a folder."""

    job: str  # random: process numbers are reused
    host: str
    pid: int
    since: str  # UTC, for people
    boot: str  # identifier of the running kernel, new at each boot
    pids: str  # the namespace of `pid`: a container has its own
    started: int  # clock ticks from the boot to the start of the process

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} since {self.since} (job {self.job})"

    def encoded(self) -> bytes:
        """Returns the owner as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def runs(self) -> bool:
        """True if the process exists, for process numbers of this host."""
        return birth(self.pid) == self.started


def this_process() -> LockOwner:
    """Returns this process as the owner of a lock."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    host, pid = socket.gethostname(), os.getpid()
    try:
        boot, pids = BOOT.read_text().strip(), os.readlink(PIDS)
    except OSError:  # a sandbox shows neither: other processes use the lease
        boot = pids = f"{host} {uuid.uuid4()}"
    return LockOwner(uuid.uuid4().hex[:8], host, pid, now, boot, pids, birth(pid) or 0)


def parse(text: bytes) -> LockOwner | None:
    """Returns the owner in a lock file; None if the file is empty or torn."""
    match decoded(text):
        case {
            "job": str(job), "host": str(host), "pid": int(pid), "since": str(since),
            "boot": str(boot), "pids": str(pids), "started": int(started),
        }:  # fmt: skip
            return LockOwner(job, host, pid, since, boot, pids, started)
    return None


def birth(pid: int) -> int | None:
    """Returns the start time of a process; None if there is no process of this number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
