"""Instance types and the zones that offer them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atomo_cluster.ec2.aws.client import Aws

__all__ = ["InstanceType", "all_instance_types", "instance_types", "types_by_zone"]


@dataclass(frozen=True)
class InstanceType:
    """An instance type."""

    type: str
    vcpus: int
    memory_gib: float
    gpus: int
    gpu: str  # e.g. NVIDIA T4
    network: str  # e.g. Up to 25 Gigabit
    architecture: str  # x86_64 or arm64
    efa: bool
    spot: bool
    packs: bool  # may be in a cluster placement group


def instance_types(aws: Aws, types: Iterable[str]) -> dict[str, InstanceType]:
    """Describes instance types by name; types that the region lacks are left out."""
    type_names = sorted(set(types))
    filters = [{"Name": "instance-type", "Values": type_names}]
    described = aws.constant("ec2.describe_instance_types", "InstanceTypes", Filters=filters)
    return {description["InstanceType"]: machine(description) for description in described}


def all_instance_types(aws: Aws) -> list[InstanceType]:
    """Describes every instance type of the region."""
    described = aws.constant("ec2.describe_instance_types", "InstanceTypes")
    return [machine(description) for description in described]


def machine(described: Mapping[str, Any]) -> InstanceType:
    """Parses the description of an instance type."""
    cards = described.get("GpuInfo", {}).get("Gpus", [])
    processor, network = described.get("ProcessorInfo", {}), described.get("NetworkInfo", {})
    architectures = processor.get("SupportedArchitectures", ["x86_64"])
    return InstanceType(
        type=described["InstanceType"],
        vcpus=described["VCpuInfo"]["DefaultVCpus"],
        memory_gib=described["MemoryInfo"]["SizeInMiB"] / 1024,
        gpus=sum(card["Count"] for card in cards),
        gpu=" and ".join(f"{card['Manufacturer']} {card['Name']}" for card in cards),
        network=network.get("NetworkPerformance", "unknown"),
        architecture="x86_64" if "x86_64" in architectures else architectures[0],
        efa=bool(network.get("EfaSupported")),
        spot="spot" in described.get("SupportedUsageClasses", []),
        packs="cluster" in described.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
    )


def types_by_zone(aws: Aws, types: Iterable[str]) -> dict[str, frozenset[str]]:
    """Maps each zone of the region to the types that it offers."""
    type_names = sorted(set(types))
    listed = aws.constant(
        "ec2.describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": type_names}],
    )
    pairs = [(offering["Location"], offering["InstanceType"]) for offering in listed]
    return {
        zone: frozenset(kind for offered_zone, kind in pairs if offered_zone == zone)
        for zone, _ in pairs
    }
