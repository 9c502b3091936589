"""A reader of host files: one host a line, the master's first.

# comments and empty lines are allowed
10.0.0.1
worker-1.example slots=4    # at most four processes here
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from atomo.core.safe_read import read_text
from atomo.errors import ConfigError

__all__ = ["HERE", "Host", "assign_processes", "read_hosts", "remaining_hosts"]

HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})

LONGEST: Final = 300  # characters of a name
SHOWN: Final = 200  # characters of a line that is wrong
NAME: Final = re.compile(r"(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
ADDRESS6: Final = re.compile(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")


@dataclass(frozen=True)
class Host:
    """One line of a host file."""

    name: str
    slots: int | None = None  # processes at most; None: any number


def read_hosts(path: Path) -> list[Host]:
    """Returns the hosts of a file.

    Raises:
        ConfigError: the file cannot be read, names no host, or has a line that names no host; the
            message has the line's number.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile {path}: {error}") from error
    hosts = [
        parse_line(line, f"{path}:{number}")
        for number, text in enumerate(lines, 1)
        if (line := text.partition("#")[0].strip())
    ]
    if not hosts:
        raise ConfigError(
            f"--hostfile {path}: the file names no host; write one a line, the master first"
        )
    return hosts


def parse_line(line: str, place: str) -> Host:
    """Returns the host of one line without its comment."""
    name, *options = line.split()
    slots = re.fullmatch(r"slots=([1-9][0-9]{0,5})", options[0]) if options else None
    if len(options) > 1 or (options and not slots) or len(name) > LONGEST or not (
        NAME.fullmatch(name) or ADDRESS6.fullmatch(name)
    ):  # fmt: skip
        shown = repr(line if len(line) <= SHOWN else f"{line[:SHOWN]}...")
        raise ConfigError(f"{place}: {shown} is not a host; write `HOST` or `HOST slots=N`")
    return Host(name, int(slots[1]) if slots else None)


def assign_processes(
    hosts: Sequence[Host], processes: int, source: str = "the host file"
) -> list[tuple[str, int]]:
    """Counts the processes of each host: ranks are assigned round-robin, the master to the first.

    Args:
        hosts: the hosts, the master's first.
        processes: the number of processes.
        source: the origin of the hosts, for messages.

    Raises:
        ConfigError: the slots do not suffice.
    """
    counts = dict.fromkeys((host.name for host in hosts), 0)
    limits: dict[str, float] = dict.fromkeys(counts, 0)
    for host in hosts:  # a host on two lines has the slots of both
        limits[host.name] += inf if host.slots is None else host.slots
    unplaced = processes
    while unplaced:
        open_hosts = [name for name, limit in limits.items() if counts[name] < limit]
        if not open_hosts:
            total = processes - unplaced
            raise ConfigError(f"--n {processes}, but {source} has slots for {total} processes")
        for name in open_hosts[:unplaced]:
            counts[name] += 1
        unplaced -= len(open_hosts[:unplaced])
    return [(name, count) for name, count in counts.items() if count]


def remaining_hosts(hosts: Sequence[Host], away: Collection[str]) -> list[Host]:
    """Returns the hosts that are not away.

    Raises:
        ConfigError: all hosts are away.
    """
    present = [host for host in hosts if host.name not in away]
    if not present:
        raise ConfigError(f"none of the hosts {', '.join(sorted(away))} answers")
    return present
