"""Commands on hosts over the OpenSSH client, which refuses unknown host keys."""

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from atomo_cluster.ec2.hosts.keys import require_program
from atomo_cluster.ec2.settings.terms import MASTER
from atomo_cluster.errors import RemoteError

__all__ = ["UNREACHED", "Answer", "Host", "Ssh", "host_label", "on_all_hosts"]

UNREACHED: Final = 255  # the exit code of ssh itself
COMMAND_S: Final = 600.0  # for a command that has no bound of its own
ALIVE_S: Final = 15  # without an answer for three times as long ssh ends
MAX_CONNECTIONS: Final = 32
T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """A host that is reached by ssh."""

    id: str  # its host key is pinned to it: an address may belong to another host tomorrow
    alias: str
    role: str
    address: str  # from here
    inside: str  # from the other hosts
    port: int = 22
    gpus: int = 0
    own: bool = False  # of --hostfile: no host of AWS's, and nothing here has launched it

    @property
    def name(self) -> str:
        """The name in tables and messages: `master`, or the alias of a worker."""
        return MASTER if self.role == MASTER else self.alias


@dataclass(frozen=True)
class Answer:
    """The result of a command on a host."""

    host: Host
    code: int
    out: str
    err: str

    def checked(self, doing: str) -> str:
        """Returns the output of a command that succeeded.

        Raises:
            RemoteError: the command failed.
        """
        if self.code:
            raise RemoteError(f"{host_label(self.host)}: {doing}: {self.complaint()}")
        return self.out

    def complaint(self) -> str:
        """Returns the error with a hint."""
        if self.code == UNREACHED:
            return with_hint(self.err, self.host.own)
        lines = (self.err or self.out).strip().splitlines()
        return f"exit code {self.code}: {' / '.join(lines[-3:]) or 'it says nothing'}"


@dataclass(frozen=True)
class Ssh:
    """Parameters of ssh connections."""

    user: str
    key: Path | None
    known_hosts: Path
    config: str = ""  # an ssh_config file
    connect_timeout_s: float = 10.0
    proxy: str = ""  # a ProxyCommand; empty: a direct connection, or the one of `config`

    def words(self, host: Host, *command: str, terminal: bool = False) -> list[str]:
        """Returns the command line of ssh."""
        options = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": f'"{self.known_hosts}"',
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": host.id,
            "ConnectTimeout": str(max(1, round(self.connect_timeout_s))),
            "ServerAliveInterval": str(ALIVE_S),
            "LogLevel": "ERROR",
            **({"ProxyCommand": self.proxy} if self.proxy else {}),
            **({} if terminal else {"BatchMode": "yes"}),
            **({"IdentitiesOnly": "yes"} if self.key else {}),
        }
        line = [require_program("ssh"), *(["-F", self.config] if self.config else [])]
        line += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        line += ["-i", str(self.key)] if self.key else []
        line += ["-p", str(host.port)] if host.port != 22 else []
        line += ["-t"] if terminal else []
        return [*line, f"{self.user}@{host.address}", *command]

    def run(
        self, host: Host, command: str, stdin: bytes = b"", timeout_s: float | None = COMMAND_S
    ) -> Answer:
        """Runs a shell command on a host; `timeout_s`: None for a command of the user."""
        try:
            done = subprocess.run(
                self.words(host, command), input=stdin, capture_output=True, timeout=timeout_s,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(host, UNREACHED, "", f"no answer within {timeout_s:g} s")
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return Answer(host, done.returncode, out, err)


def on_all_hosts(hosts: Sequence[Host], act: Callable[[Host], T]) -> list[T]:
    """Calls `act` for all hosts in parallel; returns the results in order."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(MAX_CONNECTIONS, len(hosts))) as pool:
        return list(pool.map(act, hosts))


def host_label(host: Host) -> str:
    """Formats a host for messages."""
    return f"{host.name} ({host.address})"


HINTS: Final = {
    "targetnotconnected": "its agent has not registered with Session Manager (yet): that takes a "
    "minute, a way to the internet or to AWS's endpoints, and hosts launched with connect: ssm",
    "permission denied": "the host does not take this key: is path_to_keyfile the private half of "
    "key_name, and ssh_username the image's user?",
    "host key verification failed": "its host key is not the pinned one: somebody may be in "
    "between. If the host was set up anew, remove its line from known_hosts in state_dir",
    "host identification has changed": "its host key is not the pinned one: somebody may be in "
    "between. If the host was set up anew, remove its line from known_hosts in state_dir",
    "no answer within": "is it still starting? see `status`; `launch` renews the rule for ssh",
    "timed out": "has this machine's address changed? `launch` renews the rule for ssh",
    "connection refused": "sshd does not run there (yet): try again in a minute",
    "could not resolve": "no such host name here",
    "no route": "is there a network between here and there?",
}


# Hosts of a hostfile have no image, and `launch` does not control their ssh.
OWN_HINTS: Final = HINTS | {
    "permission denied": "the host does not take this key, or not from this user: "
    "--path-to-keyfile and --ssh-username name others",
    **dict.fromkeys(
        ("no answer within", "timed out"),
        "does it run, is the address in --hostfile right, and does a firewall let ssh through?",
    ),
}


def with_hint(complaint: str, own: bool = False) -> str:
    """Adds a hint to the output of ssh; `own` selects the hints for hosts of --hostfile."""
    line = " / ".join(complaint.strip().splitlines()[-2:]) or "ssh failed and says nothing"
    for words, hint in (OWN_HINTS if own else HINTS).items():
        if words in complaint.lower():
            return f"{line}; {hint}"
    return line
