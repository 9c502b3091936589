"""The script of a host's first boot: the fuse first, then the spot watch."""

import shlex
from typing import Final

from atomo_cluster.ec2.hosts.fuses import boot_lines
from atomo_cluster.ec2.hosts.scripts import LIBRARY, SCRIPTS, write_lines
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError

__all__ = ["user_data"]

UNIT: Final = "/etc/systemd/system/atomo-spot.service"
LARGEST: Final = 16_384  # bytes that EC2 takes


def user_data(cluster: Cluster, spot: bool, admitted: str = "") -> str:
    """Returns the script for cloud-init; spot hosts get the watch.

    `admitted` is a public key that hosts accept in addition to the key pair: hosts launched by the
    master accept the cluster's own key, since the private key of the pair is on another machine.

    `$ATOMO_ROOT` replaces / as the root of all files that it writes.
    """
    parts = ["#!/bin/bash", *boot_lines(cluster.max_hours)]
    if admitted:
        parts.append(admit(cluster.ssh_username, admitted))
    if spot:
        unit = (SCRIPTS / "atomo-spot.service").read_text().replace("USER", cluster.ssh_username)
        parts += [
            write_lines(f"{LIBRARY}/spot_watch.sh", (SCRIPTS / "spot_watch.sh").read_text()),
            write_lines(f"{LIBRARY}/leave_job.sh", (SCRIPTS / "leave_job.sh").read_text()),
            write_lines(UNIT, unit),
            "systemctl daemon-reload",
            "systemctl enable --now atomo-spot.service",
        ]
    text = "\n".join(parts) + "\n"
    if len(text.encode()) > LARGEST:
        raise ConfigError(f"the user data has {len(text.encode())} bytes, EC2 takes {LARGEST}")
    return text


def admit(user: str, public: str) -> str:
    """Returns the shell lines that authorize a key, in addition to cloud-init's keys."""
    home = f'"$ATOMO_ROOT$(getent passwd {user} | cut -d: -f6)/.ssh"'
    return (
        f"install -d -m 700 -o {user} {home}\n"
        f"echo {shlex.quote(public.strip())} >>{home}/authorized_keys\n"
        f"chown {user} {home}/authorized_keys && chmod 600 {home}/authorized_keys"
    )
