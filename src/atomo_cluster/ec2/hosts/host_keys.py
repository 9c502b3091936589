"""The host keys of a cluster, pinned before any host is trusted.

The keys come from the instance's console, which AWS authenticates. While the console is empty, two
scans over the network must agree, and the console is compared with them as soon as it has output.
A pinned key that changes is refused.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final, final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.hosts.keys import require_program
from atomo_cluster.ec2.hosts.ssh import Host, Ssh, host_label
from atomo_cluster.errors import CloudError, RemoteError
from atomo_cluster.plain_files import replace_plain

__all__ = ["CONSOLE", "SCANNED", "HostKeys", "console_keys"]

CONSOLE: Final = "console"
SCANNED: Final = "scanned"
BLOCK: Final = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END", re.DOTALL)
KEY: Final = re.compile(r"\b((?:ssh|ecdsa)-[\w@.-]+) ([A-Za-z0-9+/]{40,}={0,3})")
SCAN_S: Final = 5
LOOKUP_S: Final = 60  # more than a scan, and a name that is looked up slowly
SESSION_S: Final = 60


@final
class HostKeys:
    """A known_hosts file of the cluster: one line per key, its source as the comment."""

    def __init__(self, ssh: Ssh, console: Callable[[Host], set[str]]) -> None:
        self._ssh, self._console = ssh, console
        self._path: Path = ssh.known_hosts
        self._lock = Lock()  # hosts are pinned from several threads

    def pin(self, host: Host) -> str | None:
        """Pins a host's keys and returns their source; None if no source has them yet.

        Raises:
            RemoteError: the host shows other keys than the pinned ones.
        """
        pinned, source = self.pinned(host)
        if pinned and source == CONSOLE:
            return CONSOLE
        console_output = self._console(host)
        if console_output and pinned and not console_output & pinned:
            raise RemoteError(
                f"{host_label(host)}: the console of {host.id} shows other host keys than were "
                "scanned: "
                f"somebody may be in between. End it with `shutdown`, and delete {self._path}"
            )
        if console_output:
            return self._write(host, console_output, CONSOLE)
        if pinned:
            return SCANNED
        scanned = (
            scan_through_session(self._ssh, host)
            if self._ssh.proxy
            else scan_twice(self._ssh, host)
        )
        return self._write(host, scanned, SCANNED) if scanned else None

    def pinned(self, host: Host) -> tuple[set[str], str]:
        """Returns the pinned keys of a host and their source."""
        lines = [line.split() for line in self._lines() if line.split()[0] == host.id]
        keys = {f"{words[1]} {words[2]}" for words in lines}
        return keys, lines[0][3] if lines and len(lines[0]) > 3 else ""

    def _lines(self) -> list[str]:
        text = self._path.read_text() if self._path.exists() else ""
        return [line for line in text.splitlines() if line.strip()]

    def _write(self, host: Host, keys: set[str], source: str) -> str:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            other_lines = [line for line in self._lines() if line.split()[0] != host.id]
            host_lines = [f"{host.id} {key} {source}" for key in sorted(keys)]
            # Never half a file, whoever reads it meanwhile.
            replace_plain(self._path, "\n".join([*other_lines, *host_lines]) + "\n")
        return source


def console_keys(aws: Aws) -> Callable[[Host], set[str]]:
    """Returns a function that reads a host's keys from its console."""

    def ask(host: Host) -> set[str]:
        try:
            answer = aws.call("ec2.get_console_output", InstanceId=host.id)
        except CloudError:
            return set()  # not permitted, or too early
        return keys_in(answer.get("Output", ""))

    return ask


def keys_in(output: str) -> set[str]:
    """Finds the host keys that cloud-init prints at the first boot.

    >>> line = "cloud-init: ssh-ed25519 " + "A" * 68 + " root@host"
    >>> keys_in(f"-----BEGIN SSH HOST KEY KEYS----- {line} -----END SSH HOST KEY KEYS-----")
    {'ssh-ed25519 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA'}
    """
    return {f"{kind} {key}" for block in BLOCK.findall(output) for kind, key in KEY.findall(block)}


def scan_twice(ssh: Ssh, host: Host) -> set[str]:
    """Scans a host twice and returns the keys in both scans; empty if it does not answer yet.

    Raises:
        RemoteError: the scans show different keys of one kind.
    """
    name, port = resolve_address(ssh, host)
    first, second = scan(name, port), scan(name, port)
    common = first & second
    kinds = [{key.split()[0] for key in keys} for keys in (first, second)]
    # A busy host may leave some kinds out; another key of the same kind is another matter.
    if {key.split()[0] for key in common} != kinds[0] & kinds[1]:
        raise RemoteError(f"{host_label(host)}: two scans of its host keys differ; do not go on")
    return common


def scan_through_session(ssh: Ssh, host: Host) -> set[str]:
    """Returns the key that a host shows through a Session Manager tunnel, which AWS secures."""
    with TemporaryDirectory() as folder:
        known_hosts = Path(folder) / "known_hosts"
        line = replace(ssh, known_hosts=known_hosts).words(host, "true")
        line[1:1] = [
            "-o",
            "StrictHostKeyChecking=accept-new",
        ]  # the first value holds
        try:
            subprocess.run(line, capture_output=True, check=False, timeout=SESSION_S)
        except subprocess.TimeoutExpired:
            return set()
        text = known_hosts.read_text() if known_hosts.exists() else ""
    return {f"{kind} {key}" for kind, key in KEY.findall(text)}


def scan(name: str, port: str) -> set[str]:
    """Returns the keys shown at an address, unauthenticated."""
    line = [require_program("ssh-keyscan"), "-T", str(SCAN_S), "-p", port, name]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=LOOKUP_S)
    except subprocess.TimeoutExpired:  # as while the name is looked up
        return set()
    return {f"{kind} {key}" for kind, key in KEY.findall(done.stdout)}


def resolve_address(ssh: Ssh, host: Host) -> tuple[str, str]:
    """Returns the host name and port that ssh would use, according to ssh_config."""
    line = ssh.words(host)
    try:
        done = subprocess.run(
            [line[0], "-G", *line[1:]], capture_output=True, text=True, check=False,
            timeout=LOOKUP_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:  # ssh_config may run commands
        text = f"ssh -G does not end within {LOOKUP_S} s; see --ssh-config"
        raise RemoteError(f"{host_label(host)}: {text}") from error
    options = dict(text.split(" ", 1) for text in done.stdout.splitlines() if " " in text)
    if done.returncode:
        raise RemoteError(f"{host_label(host)}: ssh -G: {done.stderr.strip()}")
    return options["hostname"], options["port"]
