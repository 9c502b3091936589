"""The hosts and disks of clusters, found by their tags."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import (
    CLUSTER,
    HOURS,
    LAUNCH,
    MACHINE,
    OWNER,
    ROLE,
    ClusterTags,
    as_dict,
)

__all__ = [
    "ENDED",
    "LIVE",
    "STATES",
    "Disk",
    "Instance",
    "instances",
    "namesakes",
    "namesakes_text",
    "owners_instances",
    "volumes",
]

WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
LIVE: Final = ("pending", "running", "stopping", "stopped")
ENDED: Final = ("shutting-down", "terminated")
STATES: Final = "instance-state-name"


@dataclass(frozen=True)
class Instance:
    """A host of a cluster."""

    id: str
    role: str
    type: str
    state: str
    zone: str
    public_ip: str | None
    private_ip: str | None
    launched: datetime
    spot: bool
    cluster: str
    owner: str
    launch: str
    max_hours: float
    subnet: str
    ended: datetime | None = None  # where EC2 says when
    machine: str = ""  # that launched it; empty: unknown

    @property
    def fuse(self) -> datetime:
        """The time at which the host terminates itself."""
        return self.launched + timedelta(hours=self.max_hours)


def instances(aws: Aws, owned: ClusterTags, states: Iterable[str] = LIVE) -> list[Instance]:
    """Lists the cluster's instances: the master first, then workers by launch time."""
    return find_instances(aws, owned.filters(), states)


def owners_instances(aws: Aws, owner: str, states: Iterable[str] = LIVE) -> list[Instance]:
    """Lists the instances of all clusters of an owner, sorted by cluster."""
    filters = [
        {"Name": f"tag:{OWNER}", "Values": [owner]},
        {"Name": "tag-key", "Values": [CLUSTER]},
    ]
    return sorted(find_instances(aws, filters, states), key=lambda host: host.cluster)


def namesakes(aws: Aws, owned: ClusterTags) -> dict[str, int]:
    """Counts the hosts that other owners have in clusters of the same name."""
    same = [{"Name": f"tag:{CLUSTER}", "Values": [owned.cluster]}]
    owners = [host.owner for host in find_instances(aws, same, LIVE) if host.owner != owned.owner]
    return {owner: owners.count(owner) for owner in owners}


def namesakes_text(owned: ClusterTags, hosts_of_owner: Mapping[str, int]) -> str:
    """Formats the hosts of other owners."""
    listed = ", ".join(f"{count} of {owner!r}" for owner, count in sorted(hosts_of_owner.items()))
    return (
        f"hosts of a cluster called {owned.cluster} live that are not of {owned.owner!r}: {listed}"
    )


def find_instances(
    aws: Aws, filters: list[dict[str, Any]], states: Iterable[str]
) -> list[Instance]:
    """Lists the instances that match filters, masters first."""
    conditions = [*filters, {"Name": STATES, "Values": list(states)}]
    described = aws.pages("ec2.describe_instances", "Reservations", Filters=conditions)
    listed = [instance(host) for batch in described for host in batch["Instances"]]
    return sorted(listed, key=lambda host: (host.role != "master", host.launched, host.id))


def instance(described: Mapping[str, Any]) -> Instance:
    """Parses the description of an instance."""
    tags = as_dict(described)
    return Instance(
        id=described["InstanceId"],
        role=tags.get(ROLE, "worker"),
        type=described["InstanceType"],
        state=described["State"]["Name"],
        zone=described.get("Placement", {}).get("AvailabilityZone", ""),
        public_ip=described.get("PublicIpAddress"),
        private_ip=described.get("PrivateIpAddress"),
        launched=described["LaunchTime"],
        spot=described.get("InstanceLifecycle") == "spot",
        cluster=tags.get(CLUSTER, ""),
        owner=tags.get(OWNER, ""),
        launch=tags.get(LAUNCH, ""),
        max_hours=float(tags.get(HOURS, "0")),
        subnet=described.get("SubnetId", ""),
        ended=end_time(str(described.get("StateTransitionReason", ""))),
        machine=tags.get(MACHINE, ""),
    )


def end_time(reason: str) -> datetime | None:
    """Parses the end of an instance; None after fuses and spot interruptions, where EC2 has none.

    >>> end_time("User initiated (2026-02-03 04:05:06 GMT)")
    datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    """
    match = WHEN.search(reason)
    return datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc) if match else None


@dataclass(frozen=True)
class Disk:
    """A volume of a cluster."""

    id: str
    kind: str  # e.g. gp3
    gb: int
    made: datetime
    host: str  # the instance that has it; empty: none


def volumes(aws: Aws, owned: ClusterTags) -> list[Disk]:
    """Lists the cluster's disks."""
    listed = aws.pages("ec2.describe_volumes", "Volumes", Filters=owned.filters())
    return [
        Disk(
            id=volume["VolumeId"],
            kind=volume.get("VolumeType", ""),
            gb=int(volume["Size"]),
            made=volume["CreateTime"],
            host=next((place["InstanceId"] for place in volume.get("Attachments", [])), ""),
        )
        for volume in listed
    ]
