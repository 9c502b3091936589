"""The order in which the supervisor asks for workers that replace others.

First the zone of the cluster: spot instances of all types at once, then on-demand instances of one
type after another, where they cost no more than a spot instance may. With `spread_zones` the other
zones of the region follow in the same way. Another region is never asked: its hosts would share no
network with the master.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.launch.attempts import Attempt, attempts
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.money.prices import Prices, spot_prices
from atomo_cluster.ec2.places.network import Subnet
from atomo_cluster.ec2.places.zones import places, types_in
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import MASTER, ON_DEMAND, WORKER

__all__ = ["one_each", "replacement_attempts", "show_replacements", "with_replacements"]


def with_replacements(aws: Aws, plan: Plan) -> Plan:
    """Returns the plan of missing workers with all attempts of the supervisor, in their order.

    Where AWS has some of the workers, each attempt takes these.
    """
    missing = {group.role: group.count for group in plan.groups}
    if not missing:
        return plan
    return replace(plan, attempts=replacement_attempts(aws, plan, missing), partial=True)


def one_each(plan: Plan) -> Plan:
    """Returns the plan of one host of each group."""
    return replace(plan, attempts=tuple(
        replace(attempt, groups=tuple(replace(group, count=1) for group in attempt.groups))
        for attempt in plan.attempts
    ))  # fmt: skip


def show_replacements(aws: Aws, plan: Plan) -> Plan:
    """Returns the plan with the order in which a supervisor asks for a worker that replaces one."""
    if not plan.cluster.supervise:
        return plan
    return replace(plan, replacements=replacement_attempts(aws, plan, {WORKER: 1}))


def replacement_attempts(aws: Aws, plan: Plan, missing: Mapping[str, int]) -> tuple[Attempt, ...]:
    """Lists the attempts to launch missing workers: at least one, in the order of trial."""
    subnets = subnets_of(aws, plan)
    cost = plan.prices if len(subnets) == 1 else prices_in(aws, plan, subnets)
    return tuple(
        attempt
        for subnet in subnets
        for cluster in (plan.cluster, *fallbacks(aws, plan.cluster, subnet, cost))
        for attempt in attempts(aws, cluster, plan.owned, missing, [subnet], cost)
    )


def subnets_of(aws: Aws, plan: Plan) -> list[Subnet]:
    """Returns the subnet of the cluster and, with `spread_zones`, those of the other zones."""
    if not plan.cluster.spread_zones:
        return [plan.subnet]
    others = [
        subnet
        for subnet in places(aws, plan.cluster)
        if subnet.vpc == plan.subnet.vpc
        and subnet.zone != plan.subnet.zone
        and types_in(aws, plan.cluster, subnet.zone)
    ]
    return [plan.subnet, *others]


def prices_in(aws: Aws, plan: Plan, subnets: Sequence[Subnet]) -> Prices:
    """Returns the prices of a plan with those of spot workers in further zones."""
    types = plan.cluster.worker_types if plan.cluster.spot(WORKER) else ()
    zones = [subnet.zone for subnet in subnets]
    return replace(plan.prices, spot={**plan.prices.spot, **spot_prices(aws, types, zones)})


def fallbacks(aws: Aws, cluster: Cluster, subnet: Subnet, cost: Prices) -> list[Cluster]:
    """Returns the settings by which on-demand workers stand in for spot workers, if any may.

    `spot_price` is the most that an instance may cost, whatever it is.
    """
    if not cluster.spot(WORKER):
        return []
    limit = cluster.spot_price
    types = [
        type
        for type in types_in(aws, cluster, subnet.zone)
        if limit is None or ((price := cost.listed.get(type)) is not None and price <= limit)
    ]
    if not types:
        return []
    return [
        replace(
            cluster, method="", worker_method=ON_DEMAND, master_method=cluster.method_of(MASTER),
            worker_type=types[0], alternative_types=",".join(types[1:]), spot_price=None,
        )
    ]  # fmt: skip
