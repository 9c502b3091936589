"""Hosts of a job, as the launcher reaches them: over the ssh by which mpirun starts ranks there."""

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, final

from atomo.launch.jobs.hosts import HERE

__all__ = ["RemoteHosts", "ssh_command"]

PATIENCE_S: Final = 4.0  # for hosts to answer, where none does: more than an ssh takes
SLACK: Final = 5.0
LEAST_S: Final = 1.0  # for the others, once one has answered
POLL_S: Final = 0.02
AGENTS: Final = ("plm_ssh_agent", "plm_rsh_agent")  # what mpirun calls its ssh, now and earlier
# What has the process's number and began at another time is a stranger's. The states are those of
# `transports.processes`, which another host would take longer to import than to kill.
KILL: Final = """\
import os, sys
pid, started, if_stuck = map(int, sys.argv[1:])
fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
if int(fields[19]) == started and (fields[0] in "TtD" or not if_stuck):
    os.kill(pid, 9)
"""


def ssh_command(mpi_args: Sequence[str]) -> list[str]:
    """Returns the words before a host and a command: mpirun's ssh, `ssh` unless it was told
    otherwise.
    """
    named = (value for name, value in pairwise(mpi_args) if name in AGENTS)
    environment = (os.environ.get(f"PRTE_MCA_{name}") for name in AGENTS)
    found = next((value for value in (*named, *environment) if value), "ssh")
    # It may list several, the first one first.
    return shlex.split(found.partition(" : ")[0]) or ["ssh"]


@final
class RemoteHosts:
    """The other hosts of a job: which of them still answer, and killing a process there."""

    def __init__(self, hosts: Iterable[str], ssh: Sequence[str]) -> None:
        """Asks each of them whether it answers, and does not wait for it.

        Args:
            hosts: those of the job; this one may be among them.
            ssh: the words before a host and a command.
        """
        self._ssh = ssh
        self._first = {host: self._start(host, ["true"]) for host in hosts if not is_here(host)}
        self._kills: list[subprocess.Popen[bytes]] = []

    def lost(self) -> frozenset[str]:
        """Returns the hosts that answered before and do not now.

        Of one that never did nothing is known: mpirun may have another way to it than ssh.
        """
        known = [host for host, asked in self._first.items() if asked.poll() == 0]
        asked = {host: self._start(host, ["true"]) for host in known}
        return frozenset(known) - answering_hosts(asked)

    def kill(self, host: str, pid: int, started: int, *, if_stuck: bool = False) -> None:
        """Has a process of a host killed, even if it is stopped; does not wait for it.

        Args:
            host: where it is.
            pid: its number there.
            started: when it began, in ticks since the host came up.
            if_stuck: only if it is stopped, or waits for the system.
        """
        words = [sys.executable, "-S", "-c", KILL, *map(str, (pid, started, int(if_stuck)))]
        if is_here(host):
            self._kills.append(start_detached(words))
        else:
            self._kills.append(self._start(host, words))

    def close(self) -> None:
        """Ends what has not ended."""
        for process in (*self._first.values(), *self._kills):
            finish(process)

    def _start(self, host: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return start_detached([*self._ssh, host, shlex.join(words)])


def start_detached(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a command that nobody hears, in a session of its own: it can ask for no password."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def answering_hosts(asked: dict[str, subprocess.Popen[bytes]]) -> set[str]:
    """Returns the hosts that answer in time, or in `SLACK` times what the last of the
    others took.
    """
    begun, found, taken_s = time.monotonic(), set[str](), 0.0
    while any(one.poll() is None for one in asked.values()):
        spent_s = time.monotonic() - begun
        new = {host for host, one in asked.items() if one.poll() == 0} - found
        if new:
            found, taken_s = found | new, spent_s
        if spent_s > (max(LEAST_S, SLACK * taken_s) if found else PATIENCE_S):
            break
        time.sleep(POLL_S)
    found |= {host for host, one in asked.items() if one.poll() == 0}
    for process in asked.values():
        finish(process)
    return found


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def is_here(host: str) -> bool:
    """True if a name or an address is this host's."""
    name = host.rpartition("@")[2]
    if name in HERE or name == socket.gethostname():
        return True
    with suppress(OSError):
        return any(can_bind(*found[::4]) for found in socket.getaddrinfo(name, 0))
    return False


def can_bind(family: int, address: tuple[object, ...]) -> bool:
    """True if an address is one of this host."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as one:
        one.bind(address)
        return True
    return False
