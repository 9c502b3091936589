"""The hosts and disks of clusters, found by their tags."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from math import inf, isfinite
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
from atomo_cluster.ec2.settings.terms import MASTER, ROLES, WORKER

__all__ = [
    "ENDED",
    "LIVE",
    "NEVER",
    "STATES",
    "UP",
    "Address",
    "Disk",
    "Instance",
    "addresses",
    "after",
    "cluster_or_owner_instances",
    "foreign_volumes",
    "instances",
    "instances_by_id",
    "namesakes",
    "namesakes_text",
    "owners_instances",
    "past_fuse_text",
    "volumes",
    "volumes_of",
]

WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
LIVE: Final = ("pending", "running", "stopping", "stopped")
ENDED: Final = ("shutting-down", "terminated")
STATES: Final = "instance-state-name"
NEVER: Final = datetime.max.replace(tzinfo=timezone.utc)
UP: Final = ("pending", "running")
LATE: Final = timedelta(minutes=10)  # for the boot, from which the fuse counts, and for the end
ROOTS: Final = ("/dev/sda1", "/dev/xvda")  # the root devices of published images
EDITED: Final = "an edit by hand? It is read as unknown"


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
    max_hours: float  # from its last start to its fuse; infinite: its tag does not tell
    subnet: str
    ended: datetime | None = None  # where EC2 says when
    machine: str = ""  # that launched it; empty: unknown
    unread: tuple[str, ...] = ()  # the tags that cannot be read, each with what it says

    @property
    def fuse(self) -> datetime:
        """The time at which the host terminates itself; NEVER: unknown."""
        return after(self.launched, self.max_hours)

    @property
    def fuse_known(self) -> bool:
        """True if the tag tells the hours of the fuse."""
        return isfinite(self.max_hours)

    @property
    def past_fuse(self) -> bool:
        """True if the host runs although its fuse should have ended it."""
        return self.state in UP and self.fuse_known and now() - self.fuse > LATE

    def with_fuse(self, max_hours: float) -> "Instance":
        """Returns the host; if its fuse is unknown, with this one."""
        return self if self.fuse_known else replace(self, max_hours=max_hours)


def now() -> datetime:
    """Returns the time."""
    return datetime.now(timezone.utc)


def past_fuse_text(host: Instance) -> str:
    """Formats a host that outlives its fuse, and the remedy."""
    return (
        f"{host.id} IS PAST ITS FUSE AND ALIVE: it should have ended at {host.fuse:%F %R} UTC, and "
        "costs until somebody ends it. `shutdown` ends the cluster; or terminate the instance in "
        "the EC2 console"
    )


def after(start: datetime, hours: float) -> datetime:
    """Returns the time so many hours after a start; NEVER for infinitely many."""
    return start + timedelta(hours=hours) if isfinite(hours) else NEVER


def instances(aws: Aws, owned: ClusterTags, states: Iterable[str] = LIVE) -> list[Instance]:
    """Lists the cluster's instances: the master first, then workers by launch time."""
    return find_instances(aws, owned.filters(), states)


def instances_by_id(aws: Aws, ids: Iterable[str]) -> list[Instance]:
    """Lists the instances with these identifiers that EC2 knows, whatever their tags and states."""
    if not (wanted := sorted(set(ids))):
        return []
    return find_instances(aws, [{"Name": "instance-id", "Values": wanted}], [*LIVE, *ENDED])


def owners_instances(aws: Aws, owner: str, states: Iterable[str] = LIVE) -> list[Instance]:
    """Lists the instances of all clusters of an owner, sorted by cluster."""
    filters = [
        {"Name": f"tag:{OWNER}", "Values": [owner]},
        {"Name": "tag-key", "Values": [CLUSTER]},
    ]
    return sorted(find_instances(aws, filters, states), key=lambda host: host.cluster)


def cluster_or_owner_instances(aws: Aws, owned: ClusterTags) -> list[Instance]:
    """Lists the live instances of this name, of any owner, and of all clusters of the owner."""
    same = find_instances(aws, [{"Name": f"tag:{CLUSTER}", "Values": [owned.cluster]}], LIVE)
    hosts = {host.id: host for host in (*same, *owners_instances(aws, owned.owner))}
    return sorted(hosts.values(), key=lambda host: (host.cluster, host.owner))


def namesakes(aws: Aws, owned: ClusterTags) -> dict[str, int]:
    """Counts the hosts that other owners have in clusters of the same name."""
    same = [{"Name": f"tag:{CLUSTER}", "Values": [owned.cluster]}]
    hosts = [host for host in find_instances(aws, same, LIVE) if host.owner != owned.owner]
    for host in hosts:
        if not host.owner:
            aws.warn(f"warning: {host.id} is of cluster {owned.cluster} and of no owner (an edit?)")
    owners = [host.owner for host in hosts if host.owner]
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
    listed = with_roles([instance(host) for batch in described for host in batch["Instances"]])
    for host in listed:
        if host.unread and host.state in LIVE:
            aws.warn(f"warning: {unread_text(host)}")
        if host.past_fuse:
            aws.warn(f"ERROR: {past_fuse_text(host)} (region {aws.region})")
    return sorted(listed, key=lambda host: (host.role != MASTER, host.launched, host.id))


def with_roles(hosts: Sequence[Instance]) -> list[Instance]:
    """Gives hosts of unknown role one: the only one of a cluster without a master is its master."""
    masters = {host.cluster for host in hosts if host.role == MASTER and host.state in LIVE}
    unknown = [host for host in hosts if not host.role and host.state in LIVE]
    clusters = [host.cluster for host in unknown]
    alone = {host.id for host in unknown
             if host.cluster not in masters and clusters.count(host.cluster) == 1}  # fmt: skip
    return [
        host if host.role else replace(host, role=MASTER if host.id in alone else WORKER)
        for host in hosts
    ]


def unread_text(host: Instance) -> str:
    """Formats the tags of a host that cannot be read, and what follows from it."""
    effects = [f"it counts as a {host.role}"] if any(ROLE in text for text in host.unread) else []
    if not host.fuse_known:
        effects.append("its fuse and a bound on its cost are unknown: `extend HOURS` sets both")
    return f"{host.id}: {', '.join(host.unread)} ({EDITED}): {'; '.join(effects)}"


def instance(described: Mapping[str, Any]) -> Instance:
    """Parses the description of an instance."""
    tags = as_dict(described)
    role, hours = role_in(tags), hours_in(tags)
    unread = [ROLE] if tags.get(ROLE) not in ROLES else []
    unread += [HOURS] if hours == inf else []
    return Instance(
        id=described["InstanceId"],
        role=role,
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
        max_hours=hours,
        subnet=described.get("SubnetId", ""),
        ended=end_time(str(described.get("StateTransitionReason", ""))),
        machine=tags.get(MACHINE, ""),
        unread=tuple(f"the tag {key} is {tags[key]!r}" if key in tags else f"no tag {key}"
                     for key in unread),
    )  # fmt: skip


def role_in(tags: Mapping[str, str]) -> str:
    """Returns the role by its tag, or else by the host's name; empty: unknown."""
    named = tags.get("Name", "").rpartition("-")[2]
    return next((role for role in (tags.get(ROLE, ""), named) if role in ROLES), "")


def hours_in(tags: Mapping[str, str]) -> float:
    """Returns the hours of the fuse; infinite: unknown.

    >>> hours_in({HOURS: "8"}), hours_in({HOURS: "8h"}), hours_in({})
    (8.0, inf, inf)
    """
    try:
        hours = float(tags.get(HOURS, ""))
    except ValueError:
        return inf
    return hours if 0 < hours < inf else inf


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
    outlives: bool  # True if it stays, and costs, when that instance ends
    root: bool = False  # True if that instance boots from it


@dataclass(frozen=True)
class Address:
    """A public address of the account, which costs whether a host has it or not."""

    id: str  # of its allocation
    ip: str
    host: str  # the instance that has it; empty: none


def addresses(aws: Aws, key: str, values: Iterable[str]) -> list[Address]:
    """Lists the addresses with one of the values of a filter, such as `instance-id`."""
    if not (wanted := sorted(values)):
        return []
    filters = [{"Name": key, "Values": wanted}]
    listed = aws.pages("ec2.describe_addresses", "Addresses", Filters=filters)
    return [
        Address(address.get("AllocationId", ""), address["PublicIp"], address.get("InstanceId", ""))
        for address in listed
    ]


def volumes(aws: Aws, owned: ClusterTags) -> list[Disk]:
    """Lists the cluster's disks."""
    listed = aws.pages("ec2.describe_volumes", "Volumes", Filters=owned.filters())
    return [disk(volume) for volume in listed]


def foreign_volumes(aws: Aws, owned: ClusterTags, hosts: Iterable[str]) -> list[Disk]:
    """Lists the disks without the cluster's tags that hosts of it have: attached by hand."""
    ids = sorted(hosts)
    if not ids:
        return []
    attached = [{"Name": "attachment.instance-id", "Values": ids}]
    listed = aws.pages("ec2.describe_volumes", "Volumes", Filters=attached)
    return [disk(volume) for volume in listed if not owned.owns(as_dict(volume))]


def volumes_of(aws: Aws, ids: Iterable[str]) -> list[Disk]:
    """Lists the disks with these identifiers that still exist."""
    wanted = [{"Name": "volume-id", "Values": sorted(ids)}]
    return [disk(volume) for volume in aws.pages("ec2.describe_volumes", "Volumes", Filters=wanted)]


def disk(described: Mapping[str, Any]) -> Disk:
    """Parses the description of a volume."""
    places = described.get("Attachments", [])
    return Disk(
        id=described["VolumeId"],
        kind=described.get("VolumeType", ""),
        gb=int(described["Size"]),
        made=described["CreateTime"],
        host=next((place["InstanceId"] for place in places), ""),
        outlives=not all(place.get("DeleteOnTermination") for place in places),
        root=any(place.get("Device") in ROOTS for place in places),
    )
