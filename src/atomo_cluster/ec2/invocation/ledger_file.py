"""The file of the ledger: the hosts of a cluster that this machine knows of, with their places."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.invocation.record_file import read_records, write_records
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.errors import ConfigError

__all__ = ["LedgerEntry", "file_of", "read_file", "recorded_owners", "write_file"]

FILE: Final = "hosts.json"


@dataclass(frozen=True)
class LedgerEntry:
    """One life of a host: a stopped host that starts again begins a new life."""

    id: str
    owner: str
    type: str
    launched: str  # ISO 8601, as all times here
    until: str  # its end; while that is not known, its fuse
    ended: bool  # whether the end is known
    usd_per_hour: float | None  # with disk and address, at the last look; None: AWS did not say
    account: str = ""  # with the next three the place; a file of an earlier version has none
    region: str = ""
    endpoint: str = ""
    profile: str = ""

    @property
    def place(self) -> Place:
        """The place of the host."""
        return Place(self.account, self.region, self.endpoint, self.profile)

    def hours(self, now: datetime) -> float:
        """Returns the hours of this life until now."""
        end = min(now, datetime.fromisoformat(self.until))
        return max(0.0, (end - datetime.fromisoformat(self.launched)).total_seconds() / 3600)

    def usd(self, now: datetime) -> float | None:
        """Returns the cost of this life until now, in USD; None: unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours(now)


def file_of(cluster: Cluster) -> Path:
    """Returns the ledger file of a cluster."""
    return cluster.state / FILE


def read_file(cluster: Cluster) -> list[LedgerEntry]:
    """Returns the entries of all owners and places.

    Raises:
        ConfigError: the file is damaged.
    """
    return read_records(file_of(cluster), LedgerEntry, "the past costs are then lost")


def recorded_owners(cluster: Cluster) -> list[str]:
    """Lists the owners of the recorded hosts; none if the file cannot be read."""
    try:
        return sorted({entry.owner for entry in read_file(cluster)})
    except ConfigError:
        return []


def write_file(cluster: Cluster, entries: Iterable[LedgerEntry]) -> None:
    """Replaces the file atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_records(file_of(cluster), entries, "the costs of hosts cannot be recorded")
