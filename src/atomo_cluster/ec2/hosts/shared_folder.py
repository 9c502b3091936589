"""Shared file systems of AWS: EFS, and FSx for Lustre or OpenZFS.

Settings name a file system; no command makes or deletes one, or deletes files in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import ConfigError

__all__ = ["LUSTRE", "NFS", "SharedFolder", "described", "shared_folder_of"]

NFS: Final = "nfs"
LUSTRE: Final = "lustre"
EFS: Final = "efs"
PORTS: Final[Mapping[str, int]] = {NFS: 2049, LUSTRE: 988}


@dataclass(frozen=True)
class SharedFolder:
    """A file system as hosts mount it."""

    kind: str  # nfs or lustre
    source: str  # as mount takes it

    @property
    def port(self) -> int:
        """The port through which hosts reach the file system."""
        return PORTS[self.kind]


def shared_folder_of(aws: Aws, cluster: Cluster) -> SharedFolder | None:
    """Returns the file system that `storage` names; None if it is empty.

    Raises:
        ConfigError: the file system does not exist, or hosts cannot mount its type.
        CloudError: AWS does not answer.
    """
    if not cluster.storage:
        return None
    service, _, id = cluster.storage.partition(":")
    if service == EFS:  # the name leads to the mount target of the zone that asks
        return SharedFolder(NFS, f"{id}.efs.{aws.region}.amazonaws.com:/")
    return mount_parameters(described(aws, id))


def described(aws: Aws, id: str) -> Mapping[str, Any]:
    """Describes a file system of FSx."""
    file_systems = aws.call("fsx.describe_file_systems", FileSystemIds=[id])["FileSystems"]
    if not file_systems:
        raise ConfigError(f"storage fsx:{id}: region {aws.region} has no such file system")
    file_system: Mapping[str, Any] = file_systems[0]
    return file_system


def mount_parameters(file_system: Mapping[str, Any]) -> SharedFolder:
    """Returns the mount parameters of a file system of FSx."""
    kind, name = file_system["FileSystemType"], file_system.get("DNSName", "")
    if kind == "LUSTRE":
        return SharedFolder(
            LUSTRE, f"{name}@tcp:/{file_system['LustreConfiguration']['MountName']}"
        )
    if kind == "OPENZFS":
        return SharedFolder(NFS, f"{name}:/fsx")
    raise ConfigError(
        f"storage fsx:{file_system['FileSystemId']} is of type {kind}; hosts here mount LUSTRE and "
        "OPENZFS, or any NFS server by nfs_ip_address"
    )
