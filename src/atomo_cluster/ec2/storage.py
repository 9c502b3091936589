"""A file system of AWS's that all hosts mount: EFS, or FSx for Lustre or OpenZFS.

It is named and never made here, so nothing here ever deletes it or what is in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.config import Cluster
from atomo_cluster.errors import ConfigError

__all__ = ["LUSTRE", "NFS", "Shared", "described", "shared_of"]

NFS: Final = "nfs"
LUSTRE: Final = "lustre"
EFS: Final = "efs"
PORTS: Final[Mapping[str, int]] = {NFS: 2049, LUSTRE: 988}


@dataclass(frozen=True)
class Shared:
    """What hosts mount."""

    kind: str  # nfs or lustre
    source: str  # as mount takes it

    @property
    def port(self) -> int:
        """Where it has to let hosts in."""
        return PORTS[self.kind]


def shared_of(aws: Aws, cluster: Cluster) -> Shared | None:
    """What `storage` names; None: nothing.

    Raises:
        ConfigError: there is none, or it is of a kind that hosts here cannot mount.
        CloudError: AWS does not say.
    """
    if not cluster.storage:
        return None
    service, _, id = cluster.storage.partition(":")
    if service == EFS:  # the name leads to the mount target of the zone that asks
        return Shared(NFS, f"{id}.efs.{aws.region}.amazonaws.com:/")
    return mounted(described(aws, id))


def described(aws: Aws, id: str) -> Mapping[str, Any]:
    """A file system of FSx."""
    found = aws.call("fsx.describe_file_systems", FileSystemIds=[id])["FileSystems"]
    if not found:
        raise ConfigError(f"storage fsx:{id}: region {aws.region} has no such file system")
    one: Mapping[str, Any] = found[0]
    return one


def mounted(one: Mapping[str, Any]) -> Shared:
    """How a file system of FSx is mounted."""
    kind, name = one["FileSystemType"], one.get("DNSName", "")
    if kind == "LUSTRE":
        return Shared(LUSTRE, f"{name}@tcp:/{one['LustreConfiguration']['MountName']}")
    if kind == "OPENZFS":
        return Shared(NFS, f"{name}:/fsx")
    raise ConfigError(
        f"storage fsx:{one['FileSystemId']} is of type {kind}; hosts here mount LUSTRE and "
        "OPENZFS, or any NFS server by nfs_ip_address"
    )
