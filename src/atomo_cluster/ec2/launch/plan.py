"""The plan of a launch: its hosts and its cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.launch.attempts import Attempt, Group, attempts
from atomo_cluster.ec2.money.costs import BOOT_H
from atomo_cluster.ec2.money.prices import Prices, prices, sum_known
from atomo_cluster.ec2.places.network import Subnet, find_subnet
from atomo_cluster.ec2.places.zones import places, require_types
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import MASTER, ROLES, WORKER
from atomo_cluster.errors import ConfigError

__all__ = ["Plan", "make_plan", "spot_types"]


@dataclass(frozen=True)
class Plan:
    """A launch: the first attempt, and the attempts to make if AWS lacks capacity."""

    cluster: Cluster
    owned: ClusterTags
    running: tuple[Instance, ...]
    attempts: tuple[Attempt, ...]  # at least one, in the order in which they are tried
    prices: Prices
    admitted: str = ""  # see `Order`
    partial: bool = False  # True if some of the missing hosts are better than none
    replacements: tuple[Attempt, ...] = ()  # order in which the supervisor asks for a lost worker

    @property
    def groups(self) -> tuple[Group, ...]:
        """The missing hosts, in the first attempt."""
        return self.attempts[0].groups

    @property
    def subnet(self) -> Subnet:
        return self.attempts[0].subnet

    @property
    def parts(self) -> dict[str, float | None]:
        """USD per hour of the first attempt, by kind of resource."""
        hosts = sum(group.count for group in self.groups)
        disk = [self.prices.disk_hour(group.count * group.disk_gb) for group in self.groups]
        address = self.address(self.subnet)
        return {
            "instances": self.attempts[0].hourly,
            "disks": sum_known(disk),
            "addresses": None if address is None else hosts * address,
        }

    def address(self, subnet: Subnet) -> float | None:
        """Returns USD per hour of a host's public address."""
        return self.prices.address_hour if subnet.public else 0.0

    @property
    def hourly(self) -> float | None:
        """USD per hour of the whole plan."""
        return sum_known(list(self.parts.values()))

    @property
    def total(self) -> float | None:
        """Upper bound in USD on the cluster's cost until the last fuse, over all attempts."""
        totals = [self.total_of(attempt) for attempt in self.attempts]
        known_totals = [total for total in totals if total is not None]
        return max(known_totals) if len(known_totals) == len(totals) else None

    def total_of(self, attempt: Attempt) -> float | None:
        """Returns the same bound for one attempt."""
        new = [
            (group.count, group.most, group.disk_gb, self.cluster.max_hours)
            for group in attempt.groups
        ]
        old = [(1, self.prices.listed.get(host.type), self.cluster.volume_gb, host.max_hours)
               for host in self.running]  # fmt: skip
        address = self.address(attempt.subnet)
        return sum_known([self.bound(*terms, address) for terms in (*new, *old)])

    def bound(
        self,
        count: int,
        price_bound: float | None,
        disk_gb: int,
        hours: float,
        address: float | None,
    ) -> float | None:
        """Returns an upper bound in USD on the lifetime cost of identical hosts."""
        hourly = sum_known([price_bound, self.prices.disk_hour(disk_gb), address])
        return None if hourly is None or hours == inf else count * hourly * (hours + BOOT_H)


def make_plan(aws: Aws, cluster: Cluster, owned: ClusterTags, afresh: bool = False) -> Plan:
    """Plans the launch that fulfils the settings; with `afresh`, as if the cluster had no hosts.

    Raises:
        ConfigError: a type or zone does not exist, or there are more hosts than wanted.
    """
    running = [] if afresh else instances(aws, owned)
    types = (cluster.master_type, *cluster.worker_types)
    require_types(aws, types)
    subnets = [subnet_of_running(aws, cluster, running)] if running else places(aws, cluster)
    cost = prices(
        aws,
        (*types, *(host.type for host in running)),
        spot_types(cluster),
        [subnet.zone for subnet in subnets],
    )
    counts = ((MASTER, cluster.n_masters), (WORKER, cluster.n_workers))
    missing = {role: count - count_present(running, role, count) for role, count in counts}
    shortfall = {role: count for role, count in missing.items() if count}
    tried = attempts(aws, cluster, owned, shortfall, subnets, cost) if shortfall else ()
    return Plan(cluster, owned, tuple(running), tried or (Attempt(subnets[0], ()),), cost)


def spot_types(cluster: Cluster) -> tuple[str, ...]:
    """Lists the types that may be launched as spot instances."""
    types = {MASTER: (cluster.master_type,), WORKER: cluster.worker_types}
    return tuple(type for role in ROLES if cluster.spot(role) for type in types[role])


def subnet_of_running(aws: Aws, cluster: Cluster, running: Sequence[Instance]) -> Subnet:
    """Returns the subnet of the running hosts, where new hosts go."""
    there = find_subnet(aws, running[0].subnet, "")
    for name, setting, have in (
        ("availability_zone", cluster.availability_zone, there.zone),
        ("subnet_id", cluster.subnet_id, there.id),
    ):
        if setting and setting != have:
            raise ConfigError(
                f"{name} is {setting}, and the cluster's hosts are in {have}; leave it empty, or "
                "`shutdown` first"
            )
    return there


def count_present(running: Sequence[Instance], role: str, target: int) -> int:
    """Counts the hosts of a role.

    Raises:
        ConfigError: there are more than wanted, or some are stopped.
    """
    have = [host for host in running if host.role == role]
    for host in have:
        if host.state in ("stopping", "stopped"):
            raise ConfigError(
                f"{host.id} ({role}) is {host.state}: `start_hosts` starts it, `shutdown` ends the "
                "cluster"
            )
    if len(have) > target:
        raise ConfigError(
            f"the cluster has {len(have)} {role}s, and n_{role}s is {target}; `launch` never "
            f"removes hosts: raise n_{role}s, or `shutdown` first"
        )
    return len(have)
