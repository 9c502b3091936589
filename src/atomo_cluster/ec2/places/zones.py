"""Possible places of hosts: zones that offer the types, and their subnets."""

from collections.abc import Iterable

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.places.instance_types import InstanceType, instance_types, types_by_zone
from atomo_cluster.ec2.places.network import Subnet, find_subnet, find_subnets
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError
from atomo_cluster.names import nearest

__all__ = ["places", "require_types", "types_in", "zones"]


def require_types(aws: Aws, types: Iterable[str]) -> dict[str, InstanceType]:
    """Describes each type.

    Raises:
        ConfigError: the region lacks a type.
    """
    type_names = tuple(types)
    types_by_name = instance_types(aws, type_names)
    for type in type_names:
        if type not in types_by_name:
            raise ConfigError(
                f"region {aws.region} has no instance type {type!r}; {similar(aws, type)}"
            )
    return types_by_name


def similar(aws: Aws, type: str) -> str:
    """Returns a hint about an unknown type."""
    family = type.partition(".")[0]
    filters = [{"Name": "instance-type", "Values": [f"{family}.*"]}]
    offers = aws.constant("ec2.describe_instance_types", "InstanceTypes", Filters=filters)
    names = sorted(offer["InstanceType"] for offer in offers)
    return nearest(type, names) if names else f"nor any of family {family!r}"


def types_in(aws: Aws, cluster: Cluster, zone: str) -> tuple[str, ...]:
    """Returns the worker types that a zone offers, in the order of the settings."""
    there = types_by_zone(aws, (cluster.master_type, *cluster.worker_types)).get(zone, frozenset())
    return tuple(type for type in dict.fromkeys(cluster.worker_types) if type in there)


def zones(aws: Aws, cluster: Cluster) -> list[str]:
    """Returns the zones that the settings name or, if they name none, all that offer the types.

    Raises:
        ConfigError: no zone offers the types, or a named zone does not.
    """
    if cluster.subnet_id:
        return [find_subnet(aws, cluster.subnet_id, "").zone]
    offers = types_by_zone(aws, (cluster.master_type, *cluster.worker_types))
    serving = [zone for zone, there in sorted(offers.items())
               if cluster.master_type in there and types_in(aws, cluster, zone)]  # fmt: skip
    together = ", ".join(sorted({cluster.master_type, " or ".join(cluster.worker_types)}))
    for zone in cluster.named_zones:
        if zone not in serving:
            raise ConfigError(
                f"zone {zone} does not have all of {together}; "
                f"these do: {', '.join(serving) or 'none'}"
            )
    if not serving:
        raise ConfigError(f"no zone of {aws.region} has all of {together}")
    # A shared folder is in one zone, and traffic between zones costs.
    usual = serving[:1] if cluster.outlives else serving
    return list(cluster.named_zones) or usual


def places(aws: Aws, cluster: Cluster) -> list[Subnet]:
    """Returns the possible subnets of the cluster, one per zone. Zones without subnet are left out.

    Raises:
        ConfigError: no zone has a subnet.
    """
    if cluster.subnet_id:
        return [find_subnet(aws, cluster.subnet_id, "")]
    zone_names = zones(aws, cluster)
    return find_subnets(aws, zone_names) or [find_subnet(aws, "", zone_names[0])]
