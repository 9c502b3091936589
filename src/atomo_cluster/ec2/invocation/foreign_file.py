"""The file of disks and addresses that someone attached to hosts of a cluster by hand.

They lack the cluster's tags, and stay and cost when the hosts end. `shutdown` writes each down, and
the file keeps it until AWS says that it is gone, or somebody uses it elsewhere.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import replace_plain

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
    path = file_of(cluster)
    try:
        return [ForeignResource(**record) for record in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path}: {error}; delete it; resources attached by hand are then not known"
        ) from error


def write_foreign(cluster: Cluster, resources: Iterable[ForeignResource]) -> None:
    """Replaces the file atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = file_of(cluster)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        records = [asdict(resource) for resource in resources]
        replace_plain(path, json.dumps(records, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error}; resources attached by hand are not kept") from error
