"""The script of a host's first boot: the fuse first, then the spot watch."""

import shlex
from math import ceil
from typing import Final

from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError

__all__ = ["LIBRARY", "user_data", "write"]

LIBRARY: Final = "/usr/local/lib/atomo"
PER_BOOT: Final = "/var/lib/cloud/scripts/per-boot/atomo-fuse"  # cloud-init runs it at every boot
UNIT: Final = "/etc/systemd/system/atomo-spot.service"
LARGEST: Final = 16_384  # bytes that EC2 takes
END: Final = "ATOMO_END_OF_FILE"


def user_data(cluster: Cluster, spot: bool, admitted: str = "") -> str:
    """Returns the script for cloud-init; spot hosts get the watch.

    `admitted` is a public key that hosts accept in addition to the key pair: hosts launched by the
    master accept the cluster's own key, since the private key of the pair is on another machine.

    `$ATOMO_ROOT` replaces / as the root of all files that it writes.
    """
    minutes = ceil(cluster.max_hours * 60)
    parts = [
        "#!/bin/bash",
        # Before anything that can fail: from here on the host ends by itself.
        f'shutdown -h +{minutes} "atomo: the fuse of this cluster"',
        write(f"{LIBRARY}/fuse.sh", (SCRIPTS / "fuse.sh").read_text()),
        write(PER_BOOT, f"#!/bin/bash\nexec bash {LIBRARY}/fuse.sh {minutes}\n"),
        f'chmod 755 "$ATOMO_ROOT{PER_BOOT}"',
        # Of the host that the image was made of, or of what its fuse did at this boot.
        'rm -f "$ATOMO_ROOT/etc/atomo/deadline" "$ATOMO_ROOT/etc/atomo/paused"',
        f'bash "$ATOMO_ROOT{LIBRARY}/fuse.sh" {minutes}',
    ]
    if admitted:
        parts.append(admit(cluster.ssh_username, admitted))
    if spot:
        unit = (SCRIPTS / "atomo-spot.service").read_text().replace("USER", cluster.ssh_username)
        parts += [
            write(f"{LIBRARY}/spot_watch.sh", (SCRIPTS / "spot_watch.sh").read_text()),
            write(f"{LIBRARY}/leave_job.sh", (SCRIPTS / "leave_job.sh").read_text()),
            write(UNIT, unit),
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


def write(path: str, content: str) -> str:
    """Returns the shell lines that write a file."""
    folder = path.rpartition("/")[0]
    return f'mkdir -p "$ATOMO_ROOT{folder}"\ncat >"$ATOMO_ROOT{path}" <<\'{END}\'\n{content}{END}'
