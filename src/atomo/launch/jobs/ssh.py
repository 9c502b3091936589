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

PATIENCE_S: Final = 4.0  # maximum wait for the first answer: more than an ssh takes
SLACK: Final = 5.0
LEAST_S: Final = 1.0  # minimum wait for the other hosts after the first answer
POLL_S: Final = 0.02
AGENTS: Final = ("plm_ssh_agent", "plm_rsh_agent")  # mpirun's names for its ssh, now and earlier
# A process with this id but another start time is a different one. The states are those of
# `transports.processes`; they are repeated here because the import takes longer than the kill.
KILL: Final = """\
import os, sys
pid, started, if_stuck = map(int, sys.argv[1:])
fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
if int(fields[19]) == started and (fields[0] in "TtD" or not if_stuck):
    os.kill(pid, 9)
"""


def ssh_command(mpi_args: Sequence[str]) -> list[str]:
    """Returns the words before a host and a command: the ssh that mpirun uses, by default `ssh`."""
    named = (value for name, value in pairwise(mpi_args) if name in AGENTS)
    environment = (os.environ.get(f"PRTE_MCA_{name}") for name in AGENTS)
    words = next((value for value in (*named, *environment) if value), "ssh")
    # It may list several, the first one first.
    return shlex.split(words.partition(" : ")[0]) or ["ssh"]


@final
class RemoteHosts:
    """The other hosts of a job: finds hosts that stopped answering, and kills processes there."""

    def __init__(self, hosts: Iterable[str], ssh: Sequence[str]) -> None:
        """Starts a first ssh to each host, and does not wait for the answer.

        Args:
            hosts: the hosts of the job; this host may be included.
            ssh: the words before a host and a command.
        """
        self._ssh = ssh
        self._first = {host: self._start(host, ["true"]) for host in hosts if not is_here(host)}
        self._kills: list[subprocess.Popen[bytes]] = []

    def lost(self) -> frozenset[str]:
        """Returns the hosts that answered the first ssh and do not answer now.

        A host that never answered is not reported: mpirun may reach it by other means than ssh.
        """
        reachable = [host for host, probe in self._first.items() if probe.poll() == 0]
        probes = {host: self._start(host, ["true"]) for host in reachable}
        return frozenset(reachable) - answering_hosts(probes)

    def kill(self, host: str, pid: int, started: int, *, if_stuck: bool = False) -> None:
        """Starts to kill a process of a host, even a stopped one; does not wait for its end.

        Args:
            host: the host of the process.
            pid: its process id on that host.
            started: its start time, in clock ticks since the host's boot.
            if_stuck: kill it only if it is stopped, or in uninterruptible sleep.
        """
        words = [sys.executable, "-S", "-c", KILL, *map(str, (pid, started, int(if_stuck)))]
        if is_here(host):
            self._kills.append(start_detached(words))
        else:
            self._kills.append(self._start(host, words))

    def close(self) -> None:
        """Ends all ssh processes that still run."""
        for process in (*self._first.values(), *self._kills):
            finish(process)

    def _start(self, host: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return start_detached([*self._ssh, host, shlex.join(words)])


def start_detached(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a command without output, in a new session, so that ssh cannot ask for a password."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def answering_hosts(probes: dict[str, subprocess.Popen[bytes]]) -> set[str]:
    """Returns the hosts that answer within `PATIENCE_S`; once some have answered, within `SLACK`
    times the time of the last answer.
    """
    started_s, answered, taken_s = time.monotonic(), set[str](), 0.0
    while any(probe.poll() is None for probe in probes.values()):
        spent_s = time.monotonic() - started_s
        new = {host for host, probe in probes.items() if probe.poll() == 0} - answered
        if new:
            answered, taken_s = answered | new, spent_s
        if spent_s > (max(LEAST_S, SLACK * taken_s) if answered else PATIENCE_S):
            break
        time.sleep(POLL_S)
    answered |= {host for host, probe in probes.items() if probe.poll() == 0}
    for process in probes.values():
        finish(process)
    return answered


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
        return any(can_bind(*address[::4]) for address in socket.getaddrinfo(name, 0))
    return False


def can_bind(family: int, address: tuple[object, ...]) -> bool:
    """True if an address belongs to this host."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as endpoint:
        endpoint.bind(address)
        return True
    return False
