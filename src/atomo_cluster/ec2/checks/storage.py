"""Checks of the shared folder: existence, zone and access from the hosts."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from typing import Any, Final

from atomo_cluster.ec2.checks.results import CheckContext, CheckResult, failed, ok, unknown
from atomo_cluster.ec2.hosts.shared_folder import NFS, PORTS, described, shared_folder_of
from atomo_cluster.ec2.places.network import Subnet, find_subnet
from atomo_cluster.ec2.places.zones import places
from atomo_cluster.errors import CloudError

__all__ = ["shared_folder"]

THERE: Final = ("AVAILABLE", "UPDATING", "available", "updating")


def shared_folder(site: CheckContext) -> CheckResult:
    """Checks that the shared folder exists in the zone of the hosts and admits them."""
    address = site.cluster.nfs_ip_address
    if site.cluster.storage:
        return named(site)
    if not address:
        return ok("none; checkpoints stay on the master's disk and end with it")
    if not site.cluster.outlives:
        return ok("the master's disk, which ends with it")
    target = next(
        (candidate for candidate in all_targets(site) if candidate.get("IpAddress") == address),
        None,
    )
    if target is None:
        return unknown(
            f"EFS has no mount target with the address {address}; if it is another NFS server, "
            f"it must allow port {PORTS[NFS]} from the hosts"
        )
    return of_target(site, target)


def named(site: CheckContext) -> CheckResult:
    """Checks the file system that `storage` names."""
    service, _, id = site.cluster.storage.partition(":")
    try:
        return of_efs(site, id) if service == "efs" else of_fsx(site, id)
    except CloudError as error:
        if error.code != "FileSystemNotFound":
            raise
        return failed(f"storage {site.cluster.storage}: {site.aws.region} has no such file system")


def of_efs(site: CheckContext, id: str) -> CheckResult:
    """Checks EFS: hosts of a zone reach it through the mount target of that zone."""
    mount_targets = list(targets(site, id))
    zones = {place.zone for place in places(site.aws, site.cluster)}
    for target in mount_targets:
        if target.get("AvailabilityZoneName") in zones:
            return of_target(site, target)
    present = sorted(str(mount.get("AvailabilityZoneName")) for mount in mount_targets)
    there = ", ".join(present) or "none"
    return failed(
        f"storage efs:{id} has no mount target in {' or '.join(sorted(zones))} (it has: {there}); "
        "make one there, or set availability_zone"
    )


def of_fsx(site: CheckContext, id: str) -> CheckResult:
    """Checks FSx, which is in one zone."""
    file_system = described(site.aws, id)
    shared = shared_folder_of(site.aws, site.cluster)
    subnet = find_subnet(site.aws, file_system["SubnetIds"][0], "")
    if file_system.get("Lifecycle", THERE[0]) not in THERE:
        return failed(f"storage fsx:{id} is {file_system['Lifecycle']}")
    if zones := other_zones(site, subnet.zone):
        return failed(elsewhere(f"storage fsx:{id}", subnet.zone, zones))
    port, place = shared.port if shared else PORTS[NFS], places(site.aws, site.cluster)[0]
    interfaces = list(file_system.get("NetworkInterfaceIds", []))
    listed = site.aws.pages("ec2.describe_network_interfaces", "NetworkInterfaces",
                            NetworkInterfaceIds=interfaces) if interfaces else []  # fmt: skip
    groups = [str(group["GroupId"]) for interface in listed for group in interface["Groups"]]
    if not groups:
        return unknown(f"AWS does not say who may use fsx:{id}; port {port} must be open to "
                       f"{place.cidr}")  # fmt: skip
    if not admits(site, groups, place, port):
        return failed(shut(f"storage fsx:{id}", groups[0], place, port))
    return ok(f"fsx:{id} ({file_system['FileSystemType']}) in {subnet.zone}")


def of_target(site: CheckContext, target: dict[str, Any]) -> CheckResult:
    """Checks a mount target of EFS."""
    subnet, name = places(site.aws, site.cluster)[0], target["MountTargetId"]
    there = target.get("AvailabilityZoneName", subnet.zone)
    if zones := other_zones(site, there):
        return failed(elsewhere(f"mount target {name}", there, zones))
    action = "efs.describe_mount_target_security_groups"
    groups = site.aws.call(action, MountTargetId=name)["SecurityGroups"]
    if not admits(site, groups, subnet, PORTS[NFS]):
        return failed(shut(f"mount target {name}", groups[0], subnet, PORTS[NFS]))
    return ok(f"{target['FileSystemId']} through {name}")


def other_zones(site: CheckContext, zone: str) -> list[str]:
    """Lists the possible zones of hosts other than `zone`."""
    return [place.zone for place in places(site.aws, site.cluster) if place.zone != zone]


def elsewhere(resource: str, zone: str, zones: Sequence[str]) -> str:
    """Formats the error that storage is in another zone than the hosts."""
    return (
        f"{resource} is in {zone}, the hosts in {' or '.join(zones)}: traffic between zones costs; "
        f"set availability_zone: {zone}, or name one that is there"
    )


def shut(resource: str, group: str, subnet: Subnet, port: int) -> str:
    """Formats the error that storage does not admit the hosts, with its remedy."""
    return (
        f"{resource} does not admit the hosts: `aws ec2 authorize-security-group-ingress "
        f"--group-id {group} --protocol tcp --port {port} --cidr {subnet.cidr}`"
    )


def all_targets(site: CheckContext) -> Iterator[dict[str, Any]]:
    """Yields the mount targets of all EFS file systems."""
    for system in site.aws.pages("efs.describe_file_systems", "FileSystems"):
        yield from targets(site, system["FileSystemId"])


def targets(site: CheckContext, id: str) -> Iterator[dict[str, Any]]:
    """Yields the mount targets of an EFS file system."""
    yield from site.aws.pages("efs.describe_mount_targets", "MountTargets", FileSystemId=id)


def admits(site: CheckContext, groups: list[str], subnet: Subnet, port: int) -> bool:
    """True if one of the security groups allows the port from the subnet."""
    security_groups = site.aws.pages(
        "ec2.describe_security_groups", "SecurityGroups", GroupIds=groups
    )
    hosts = ip_network(subnet.cidr)
    return any(
        hosts.subnet_of(ip_network(source["CidrIp"]))  # type: ignore[arg-type]
        for group in security_groups
        for rule in group["IpPermissions"]
        if rule["IpProtocol"] == "-1" or rule.get("FromPort", 1) <= port <= rule.get("ToPort", 0)
        for source in rule.get("IpRanges", [])
    )
