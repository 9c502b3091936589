"""The hosts of a cluster in the three files that the published scripts read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import READABLE, replace_plain

__all__ = ["alias", "host_files", "host_records", "write_host_files"]


def alias(number: int) -> str:
    """Returns the name of a host from its position in the list; the master is the first."""
    return f"deeplearning-worker{number + 1}"


def host_records(hosts: Sequence[Instance]) -> list[dict[str, Any]]:
    """Returns the hosts as records for `--json`."""
    return [
        {
            "alias": alias(number),
            **asdict(host),
            "max_hours": host.max_hours if host.fuse_known else None,
            "fuse": host.fuse if host.fuse_known else None,
        }
        for number, host in enumerate(hosts)
    ]


def host_files(addresses: Sequence[str]) -> dict[str, str]:
    """Maps file names to contents; `addresses` are internal, the master's first."""
    aliases = [alias(number) for number in range(len(addresses))]
    return {
        "hosts": "".join(f"{a}\t{b}\n" for a, b in zip(addresses, aliases, strict=True)),
        "hosts_alias": "".join(f"{name}\n" for name in aliases),
        "hosts_address": "".join(f"{address}\n" for address in addresses),
    }


def write_host_files(folder: Path, addresses: Sequence[str]) -> list[Path]:
    """Writes the three files into a folder and makes it if needed."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in host_files(addresses).items():
            replace_plain(folder / name, text, READABLE)
            written.append(folder / name)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error}") from error
    return written
