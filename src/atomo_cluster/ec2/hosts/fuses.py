"""Fuses: the planned end of each host, by a shutdown inside the host and a tag on EC2.

The host keeps its deadline in /etc/atomo/deadline and plans its own shutdown (scripts/fuse.sh).
The tag `HOURS` says the same to the commands, which compute costs and the time of the end from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import ceil
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.aws.tags import HOURS
from atomo_cluster.ec2.hosts.scripts import LIBRARY, SCRIPTS, write_lines
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh, on_all_hosts
from atomo_cluster.errors import RemoteError

__all__ = [
    "PausedFuse",
    "boot_lines",
    "burn_fuse",
    "earliest",
    "extended",
    "keep_fuse_script",
    "local_deadline",
    "move_fuse",
    "pause_fuses",
    "pause_script",
    "read_deadline",
    "resume_fuses",
    "tag_hours",
    "tag_remaining_hours",
]

PER_BOOT: Final = "/var/lib/cloud/scripts/per-boot/atomo-fuse"  # cloud-init runs it at every boot
DEADLINE: Final = "/etc/atomo/deadline"
SCRIPT_S: Final = 60.0


def install_lines() -> str:
    """Returns the shell lines that write fuse.sh on a host."""
    return write_lines(f"{LIBRARY}/fuse.sh", (SCRIPTS / "fuse.sh").read_text())


def boot_lines(max_hours: float) -> list[str]:
    """Returns the shell lines that set the fuse at a host's first boot, and keep it at later ones.

    They come first in the script of the boot: after the first line the host ends by itself,
    whatever fails later.
    """
    minutes = ceil(max_hours * 60)
    return [
        f'shutdown -h +{minutes} "atomo: the fuse of this cluster"',
        install_lines(),
        write_lines(PER_BOOT, f"#!/bin/bash\nexec bash {LIBRARY}/fuse.sh {minutes}\n"),
        f'chmod 755 "$ATOMO_ROOT{PER_BOOT}"',
        # A baked image may hold the deadline of the host that it was made from, or the deadline
        # that this boot's per-boot script has set with that image's hours.
        'rm -f "$ATOMO_ROOT/etc/atomo/deadline" "$ATOMO_ROOT/etc/atomo/paused"',
        f'bash "$ATOMO_ROOT{LIBRARY}/fuse.sh" {minutes}',
    ]


def keep_fuse_script() -> bytes:
    """Returns the script that updates fuse.sh on a host and plans the shutdown again."""
    return f'{install_lines()}\nexec bash "$ATOMO_ROOT{LIBRARY}/fuse.sh" 0\n'.encode()


def extended(host: Instance, until: datetime) -> Instance:
    """Returns the host with another fuse."""
    return replace(host, max_hours=(until - host.launched).total_seconds() / 3600)


def earliest(host: Instance, deadline: datetime | None) -> Instance:
    """Returns the host with the earlier of its tag's fuse and a deadline; None: unknown."""
    return host if deadline is None or deadline >= host.fuse else extended(host, deadline)


def move_fuse(ssh: Ssh, host: Host, until: datetime) -> Answer:
    """Sets the deadline on a host; on failure the present deadline holds."""
    return run_extend_script(ssh, host, int(until.timestamp()))


def read_deadline(ssh: Ssh, host: Host) -> datetime | None:
    """Returns the deadline that a host has written down; None: it does not tell."""
    answer = ssh.run(host, f"cat {DEADLINE}", timeout_s=SCRIPT_S)
    return None if answer.code else parse_deadline(answer.out)


def parse_deadline(text: str) -> datetime | None:
    """Parses a deadline in seconds since 1970; None: it is none.

    >>> parse_deadline("1767225600")
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    seconds = text.strip()
    return datetime.fromtimestamp(int(seconds), timezone.utc) if seconds.isdecimal() else None


def local_deadline(path: Path = Path(DEADLINE)) -> datetime | None:
    """Returns the deadline of this host; None: it has none, or it cannot be read."""
    try:
        return parse_deadline(path.read_text())
    except OSError:
        return None


def burn_fuse(ssh: Ssh, host: Host) -> Answer:
    """Sets the deadline on a host to the past, so that the host ends without AWS."""
    return run_extend_script(ssh, host, 0)


def run_extend_script(ssh: Ssh, host: Host, deadline: int) -> Answer:
    """Runs extend.sh on a host; `deadline` is in seconds since 1970."""
    command, script = f"sudo -n bash -s -- {deadline}", (SCRIPTS / "extend.sh").read_bytes()
    return ssh.run(host, command, script, SCRIPT_S)


def pause_script() -> bytes:
    """Returns the script that pauses or resumes a fuse; it also updates fuse.sh on the host."""
    return f"{install_lines()}\n{(SCRIPTS / 'pause.sh').read_text()}".encode()


@dataclass(frozen=True)
class PausedFuse:
    """Remaining time of a host's paused fuse."""

    host: str
    left_h: float


def pause_fuses(ssh: Ssh, hosts: Sequence[Host]) -> list[PausedFuse]:
    """Pauses the fuses of all hosts until their next start, or of none.

    Raises:
        RemoteError: a host cannot be reached, or its fuse ends within minutes.
    """
    answers = on_all_hosts(hosts, lambda host: run_pause_script(ssh, host, "pause"))
    if failures := [answer for answer in answers if answer.code]:
        resume_fuses(ssh, [answer.host for answer in answers if not answer.code])
        text = "; ".join(f"{answer.host.name} ({answer.host.id}): {answer.complaint()}"
                         for answer in failures)  # fmt: skip
        raise RemoteError(f"no host was stopped, since fuses would burn meanwhile: {text}")
    return [PausedFuse(answer.host.id, float(answer.out.split()[-1]) / 3600) for answer in answers]


def resume_fuses(ssh: Ssh, hosts: Sequence[Host]) -> list[Host]:
    """Resumes the fuses of hosts that keep running; returns the hosts that did not respond."""
    answers = on_all_hosts(hosts, lambda host: run_pause_script(ssh, host, "go_on"))
    return [answer.host for answer in answers if answer.code]


def run_pause_script(ssh: Ssh, host: Host, verb: str) -> Answer:
    """Runs pause.sh with a verb on a host."""
    return ssh.run(host, f"sudo -n bash -s -- {verb}", pause_script(), SCRIPT_S)


def tag_hours(aws: Aws, host: str, hours: float) -> None:
    """Tags a host with the hours from its last start to its fuse.

    Raises:
        CloudError: AWS refused.
    """
    tag = {"Key": HOURS, "Value": f"{hours:.4f}"}
    aws.call("ec2.create_tags", Resources=[host], Tags=[tag])


def tag_remaining_hours(aws: Aws, paused: Sequence[PausedFuse]) -> None:
    """Tags hosts with their remaining hours: EC2 counts the launch time from the last start."""
    for fuse in paused:
        tag_hours(aws, fuse.host, fuse.left_h)
