"""What a launch would do and cost, before it does it."""

from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.catalogue import Image, Machine, find_image, machines, zones_with
from atomo_cluster.ec2.config import MASTER, ROLES, WORKER, Cluster
from atomo_cluster.ec2.inventory import Instance, instances
from atomo_cluster.ec2.network import Subnet, find_subnet
from atomo_cluster.ec2.pricing import Prices, added, money, prices
from atomo_cluster.ec2.tags import Owned
from atomo_cluster.errors import ConfigError, NotReady
from atomo_cluster.names import nearest

__all__ = [
    "Group",
    "Plan",
    "check_budget",
    "choose_zone",
    "known_machines",
    "make_plan",
    "spot_types",
]

BOOT_H: Final = 0.1  # hosts cost from their start, and the fuse burns from their boot


@dataclass(frozen=True)
class Group:
    """Equal hosts that are to be launched."""

    role: str
    count: int
    machine: Machine
    alternatives: tuple[str, ...]  # types that will do as well
    image: Image
    method: str  # spot, on-demand or reserved
    spot: bool
    hourly: float | None  # USD for one of them now, without its disk and address
    most: float | None  # the same as a bound: list price or spot_price, of the dearest type
    disk_gb: int  # the image may need more than volume_gb


@dataclass(frozen=True)
class Plan:
    """A launch."""

    cluster: Cluster
    owned: Owned
    running: tuple[Instance, ...]
    groups: tuple[Group, ...]  # what is missing
    zone: str
    subnet: Subnet
    prices: Prices

    @property
    def parts(self) -> dict[str, float | None]:
        """USD per hour of what is to be launched, by what it is for."""
        hosts = sum(group.count for group in self.groups)
        each = [(group.count, group.hourly) for group in self.groups]
        disk = [self.prices.disk_hour(group.count * group.disk_gb) for group in self.groups]
        return {
            "instances": added([None if one is None else count * one for count, one in each]),
            "disks": added(disk),
            "addresses": None if self.address is None else hosts * self.address,
        }

    @property
    def address(self) -> float | None:
        """USD per hour of a host's public address."""
        return self.prices.address_hour if self.subnet.public else 0.0

    @property
    def hourly(self) -> float | None:
        """USD per hour of all of it."""
        return added(list(self.parts.values()))

    @property
    def total(self) -> float | None:
        """USD until the last fuse that the whole cluster cannot cost more than."""
        new = [(one.count, one.most, one.disk_gb, self.cluster.max_hours) for one in self.groups]
        old = [(1, self.prices.listed.get(one.type), self.cluster.volume_gb, one.max_hours)
               for one in self.running]  # fmt: skip
        return added([self.bound(*host) for host in (*new, *old)])

    def bound(self, count: int, most: float | None, disk_gb: int, hours: float) -> float | None:
        """USD that equal hosts cannot cost more than in their whole lives."""
        hourly = added([most, self.prices.disk_hour(disk_gb), self.address])
        return None if hourly is None else count * hourly * (hours + BOOT_H)


def make_plan(aws: Aws, cluster: Cluster, owned: Owned, afresh: bool = False) -> Plan:
    """The launch that makes the cluster what its settings say; afresh: as if it had no hosts yet.

    Raises:
        ConfigError: a type or zone does not exist here, or there are more hosts than wanted.
    """
    running = [] if afresh else instances(aws, owned)
    types = (cluster.master_type, *cluster.worker_types)
    known = known_machines(aws, types)
    subnet = place(aws, cluster, running, types)
    cost = prices(aws, (*types, *(one.type for one in running)), spot_types(cluster), [subnet.zone])
    wanted = (
        (MASTER, cluster.n_masters, cluster.master_type, ()),
        (WORKER, cluster.n_workers, cluster.worker_type, cluster.worker_types[1:]),
    )
    groups = []
    for role, count, type, others in wanted:
        missing = count - present(running, role, count)
        if missing:
            kinds = (known[type], others)
            groups.append(group(aws, cluster, cost, role, missing, kinds, subnet.zone))
    return Plan(cluster, owned, tuple(running), tuple(groups), subnet.zone, subnet, cost)


def group(
    aws: Aws,
    cluster: Cluster,
    cost: Prices,
    role: str,
    count: int,
    kinds: tuple[Machine, tuple[str, ...]],
    zone: str,
) -> Group:
    """Equal hosts with their image and their price."""
    machine, others = kinds
    spot = cluster.spot(role)
    image = find_image(aws, cluster.image_id, machine)
    return Group(
        role=role,
        count=count,
        machine=machine,
        alternatives=others,
        image=image,
        method=cluster.method_of(role),
        spot=spot,
        hourly=cost.hourly(machine.type, spot, zone),
        most=cost.most((machine.type, *others), cluster.spot_price if spot else None),
        disk_gb=max(cluster.volume_gb, image.root_gb),
    )


def spot_types(cluster: Cluster) -> tuple[str, ...]:
    """The types that may be launched as spot instances."""
    types = {MASTER: (cluster.master_type,), WORKER: cluster.worker_types}
    return tuple(type for role in ROLES if cluster.spot(role) for type in types[role])


def check_budget(plan: Plan) -> None:
    """Raises NotReady where the cluster may cost more than max_usd, or nobody knows."""
    limit, most = plan.cluster.max_usd, plan.total
    if limit is None or not plan.groups or (most is not None and most <= limit):
        return
    told = f"the cluster may cost {money(most)} until its fuses, and max_usd is {money(limit)}"
    if most is None:
        told = f"max_usd is {money(limit)}, and AWS does not say what the cluster may cost"
    raise NotReady(f"{told}; take fewer hosts or hours, a spot_price, or another max_usd")


def known_machines(aws: Aws, types: tuple[str, ...]) -> dict[str, Machine]:
    """What each type is.

    Raises:
        ConfigError: the region does not have one of them.
    """
    known = machines(aws, types)
    for type in types:
        if type not in known:
            raise ConfigError(
                f"region {aws.region} has no instance type {type!r}; {similar(aws, type)}"
            )
    return known


def place(aws: Aws, cluster: Cluster, running: list[Instance], types: tuple[str, ...]) -> Subnet:
    """Where the hosts go: to those that are there already, if any are."""
    if not running:
        return find_subnet(aws, cluster.subnet_id, choose_zone(aws, cluster, types))
    there = find_subnet(aws, running[0].subnet, "")
    for name, asked, have in (
        ("availability_zone", cluster.availability_zone, there.zone),
        ("subnet_id", cluster.subnet_id, there.id),
    ):
        if asked and asked != have:
            raise ConfigError(
                f"{name} is {asked}, and the cluster's hosts are in {have}; leave it empty, or "
                "`shutdown` first"
            )
    return there


def present(running: list[Instance], role: str, wanted: int) -> int:
    """How many hosts of a role there are.

    Raises:
        ConfigError: more than wanted, or one that is stopped and so would be counted wrongly.
    """
    have = [one for one in running if one.role == role]
    for one in have:
        if one.state in ("stopping", "stopped"):
            raise ConfigError(
                f"{one.id} ({role}) is {one.state}: start it, or end the cluster with `shutdown`"
            )
    if len(have) > wanted:
        raise ConfigError(
            f"the cluster has {len(have)} {role}s, and n_{role}s is {wanted}; `launch` never "
            f"removes hosts: raise n_{role}s, or `shutdown` first"
        )
    return len(have)


def similar(aws: Aws, type: str) -> str:
    """A hint about a type that there is not."""
    family = type.partition(".")[0]
    filters = [{"Name": "instance-type", "Values": [f"{family}.*"]}]
    offered = aws.constant("ec2.describe_instance_types", "InstanceTypes", Filters=filters)
    names = sorted(one["InstanceType"] for one in offered)
    return nearest(type, names) if names else f"nor any of family {family!r}"


def choose_zone(aws: Aws, cluster: Cluster, types: tuple[str, ...]) -> str:
    """The zone of the settings, or the first one that has all types.

    Raises:
        ConfigError: there is none.
    """
    if cluster.subnet_id:
        return find_subnet(aws, cluster.subnet_id, "").zone
    offering, zone = zones_with(aws, types), cluster.availability_zone
    together = ", ".join(sorted(set(types)))
    if zone and zone not in offering:
        raise ConfigError(
            f"zone {zone} does not have all of {together}; "
            f"these do: {', '.join(offering) or 'none'}"
        )
    if not offering:
        raise ConfigError(f"no zone of {aws.region} has all of {together}")
    return zone or offering[0]
