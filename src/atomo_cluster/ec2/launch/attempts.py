"""Launch attempts: zones and instance types for the missing hosts, in the order of trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.images.baked import choose_image
from atomo_cluster.ec2.images.published import Image
from atomo_cluster.ec2.money.prices import Prices, sum_known
from atomo_cluster.ec2.places.instance_types import InstanceType
from atomo_cluster.ec2.places.network import Subnet
from atomo_cluster.ec2.places.zones import require_types, types_in
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import MASTER, WORKER

__all__ = ["Attempt", "Group", "attempts"]


@dataclass(frozen=True)
class Group:
    """Identical hosts to launch."""

    role: str
    count: int
    machine: InstanceType
    alternatives: tuple[str, ...]  # other accepted types, in the same order
    image: Image
    method: str  # spot, on-demand or reserved
    spot: bool
    hourly: float | None  # USD per host now, without disk and address
    most: float | None  # the same as a bound: list price or spot_price, of the dearest type
    disk_gb: int  # the image may need more than volume_gb

    @property
    def types(self) -> tuple[str, ...]:
        return (self.machine.type, *self.alternatives)


@dataclass(frozen=True)
class Attempt:
    """All missing hosts in one zone, with one choice of instance types."""

    subnet: Subnet
    groups: tuple[Group, ...]

    @property
    def hourly(self) -> float | None:
        """USD per hour of all instances now, without disks and addresses."""
        counted_prices = [(group.count, group.hourly) for group in self.groups]
        return sum_known(
            [None if price is None else count * price for count, price in counted_prices]
        )

    @property
    def where(self) -> str:
        """Zone and types, e.g. `m5.large in us-east-1a`."""
        types = self.groups[-1].types if self.groups else ("nothing",)
        return f"{' or '.join(types)} in {self.subnet.zone}"


def attempts(
    aws: Aws,
    cluster: Cluster,
    owned: ClusterTags,
    missing: Mapping[str, int],
    subnets: Sequence[Subnet],
    cost: Prices,
) -> tuple[Attempt, ...]:
    """Lists every zone with every choice of types: cheapest first, unknown prices last.

    Spot workers have all types in one choice, from which EC2 picks by capacity. Other workers have
    one type per choice.
    """
    unsorted = [
        Attempt(subnet, groups(aws, cluster, owned, missing, types, subnet.zone, cost))
        for subnet in subnets
        for types in choices(cluster, types_in(aws, cluster, subnet.zone), missing)
    ]
    order = {type: number for number, type in enumerate(cluster.worker_types)}
    return tuple(sorted(unsorted, key=lambda attempt: rank(attempt, order)))


def rank(attempt: Attempt, order: Mapping[str, int]) -> tuple[bool, float, int, str]:
    """Returns the sort key of an attempt: the price, then the order of the settings."""
    price = attempt.hourly
    first = order.get(attempt.groups[-1].machine.type, 0) if attempt.groups else 0
    return price is None, price or 0.0, first, attempt.subnet.zone


def choices(
    cluster: Cluster, types: tuple[str, ...], missing: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """Lists the choices of worker types, one attempt each."""
    if WORKER not in missing or cluster.spot(WORKER):
        return [types or cluster.worker_types]
    return [(type,) for type in types or cluster.worker_types]


def groups(
    aws: Aws,
    cluster: Cluster,
    owned: ClusterTags,
    missing: Mapping[str, int],
    types: tuple[str, ...],
    zone: str,
    cost: Prices,
) -> tuple[Group, ...]:
    """Builds the groups of missing hosts, one per role, in a zone."""
    types_by_name = require_types(aws, (cluster.master_type, *cluster.worker_types))
    of_role = {MASTER: (cluster.master_type,), WORKER: types}
    return tuple(
        group(
            cluster,
            role,
            count,
            [types_by_name[type] for type in of_role[role]],
            (zone, cost),
            choose_image(aws, owned, cluster.image_id, types_by_name[of_role[role][0]]),
        )
        for role, count in missing.items()
    )


def group(
    cluster: Cluster,
    role: str,
    count: int,
    machines: Sequence[InstanceType],
    priced: tuple[str, Prices],
    image: Image,
) -> Group:
    """Builds a group of identical hosts with their image and price."""
    (zone, cost), spot = priced, cluster.spot(role)
    machine, types = machines[0], [machine.type for machine in machines]
    return Group(
        role=role,
        count=count,
        machine=machine,
        alternatives=tuple(types[1:]),
        image=image,
        method=cluster.method_of(role),
        spot=spot,
        hourly=cost.hourly(machine.type, spot, zone),
        most=cost.most(types, cluster.spot_price if spot else None),
        disk_gb=max(cluster.volume_gb, image.root_gb),
    )
