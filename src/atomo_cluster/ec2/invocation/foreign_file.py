"""The file of disks and addresses that someone attached to hosts of a cluster by hand.

They lack the cluster's tags, and stay and cost when the hosts end. `shutdown` writes each down, and
the file keeps it until AWS says that it is gone, or somebody uses it elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.invocation.record_file import read_records, write_records
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place

__all__ = ["ADDRESS", "VOLUME", "ForeignResource", "read_foreign", "write_foreign"]

FILE: Final = "by_hand.json"
VOLUME, ADDRESS = "volume", "address"
REMEDIES: Final = {
    VOLUME: "`aws ec2 delete-volume --region {} --volume-id {}` deletes it",
    ADDRESS: "`aws ec2 release-address --region {} --allocation-id {}` releases it",
}


@dataclass(frozen=True)
class ForeignResource:
    """A disk or a public address that was attached by hand."""

    id: str  # of a volume, or of the allocation of an address
    kind: str  # VOLUME or ADDRESS
    what: str  # e.g. `500 GB gp3`, or the address
    host: str  # to which it was attached
    since: str  # ISO 8601: the time from which it counts as a cost of the cluster
    owner: str
    account: str
    region: str
    endpoint: str = ""
    profile: str = ""

    @property
    def place(self) -> Place:
        """The place of the resource."""
        return Place(self.account, self.region, self.endpoint, self.profile)

    @property
    def line(self) -> str:
        """The resource in lists."""
        return f"{self.kind} {self.id} ({self.what}), attached by hand to {self.host}"

    @property
    def remedy(self) -> str:
        """The command that ends its cost."""
        return REMEDIES[self.kind].format(self.region, self.id)


def file_of(cluster: Cluster) -> Path:
    """Returns the file of a cluster."""
    return cluster.state / FILE


def read_foreign(cluster: Cluster) -> list[ForeignResource]:
    """Returns the resources of all owners and places.

    Raises:
        ConfigError: the file is damaged.
    """
    lost = "resources attached by hand are then not known"
    return read_records(file_of(cluster), ForeignResource, lost)


def write_foreign(cluster: Cluster, resources: Iterable[ForeignResource]) -> None:
    """Replaces the file atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_records(file_of(cluster), resources, "resources attached by hand are not kept")
