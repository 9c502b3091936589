"""The tags of a cluster: a resource belongs to it only with both tags, name and owner."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from getpass import getuser
from hashlib import sha256
from socket import gethostname
from typing import Any, Final

__all__ = [
    "CLUSTER",
    "ENDS",
    "GPUS",
    "HOURS",
    "IMAGE",
    "LAUNCH",
    "MACHINE",
    "OWNER",
    "ROLE",
    "ClusterTags",
    "as_dict",
    "this_machine",
]

CLUSTER: Final = "atomo:cluster"
OWNER: Final = "atomo:owner"
ROLE: Final = "atomo:role"  # master or worker
LAUNCH: Final = "atomo:launch"  # the run of `launch` that made it, for the roll-back
HOURS: Final = "atomo:max-hours"
MACHINE: Final = "atomo:machine"  # of hosts: the user and machine that launched them
IMAGE: Final = "atomo:image"  # of images: the cluster that they are of
GPUS: Final = "atomo:gpus"  # of images: whether they have a driver
UNFIT: Final = re.compile(r"[^\w .:/=+@-]")
LONGEST: Final = 256  # characters of a value
LONGEST_ROLE: Final = 64  # characters of a role's name in IAM
ENDS: Final = "-ends"  # ends the name of the role with which AWS ends hosts after their fuses
HOSTS: Final = "-hosts"  # ends the name of the role that only admits Session Manager


@dataclass(frozen=True)
class ClusterTags:
    """The identity of a cluster: its name and owner, as tags."""

    cluster: str
    owner: str
    further: tuple[tuple[str, str], ...] = ()  # the user's own; nothing is found by them

    @property
    def label(self) -> str:
        """A name for AWS resources that differs between owners of clusters of the same name."""
        return f"atomo-{self.cluster}-{sha256(self.owner.encode()).hexdigest()[:8]}"

    def role_name(self, region: str) -> str:
        """Returns the name of the master's role: IAM has no regions, and each cluster has its own.

        Where name and region are too long for IAM, the region is part of the hash alone.
        """
        name = f"{self.label}-{region}"
        if len(name) + len(HOSTS) <= LONGEST_ROLE:
            return name
        return f"atomo-{self.cluster}-{sha256(f'{self.owner} {region}'.encode()).hexdigest()[:8]}"

    def end_role_name(self, region: str) -> str:
        """Returns the name of the role with which AWS ends hosts of a region."""
        return f"{self.role_name(region)}{ENDS}"

    def role_names(self, region: str) -> tuple[str, ...]:
        """Lists the names that roles in a region may have: first today's, then earlier ones."""
        names = (self.role_name(region), self.label)
        return tuple(f"{name}{end}" for name in names for end in ("", HOSTS))

    def filters(self, **conditions: str) -> list[dict[str, Any]]:
        """Returns the filters that find only the resources of this cluster."""
        tag_values = {f"tag:{CLUSTER}": self.cluster, f"tag:{OWNER}": self.owner}
        return [
            {"Name": name, "Values": [value]} for name, value in (tag_values | conditions).items()
        ]

    def describes(self, cluster: str, owner: str) -> bool:
        """True if these are the name and the owner of this cluster."""
        return (cluster, owner) == (self.cluster, self.owner)

    def owns(self, tags: Mapping[str, str]) -> bool:
        """True if these tags are those of this cluster."""
        return tags.get(CLUSTER) == self.cluster and tags.get(OWNER) == self.owner

    def specification(self, kind: str, extra: Mapping[str, str]) -> dict[str, Any]:
        """Returns the tags of a new resource in the format of EC2."""
        tags = {**dict(self.further), CLUSTER: self.cluster, OWNER: self.owner, **extra}
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        return {"ResourceType": kind, "Tags": listed}


def this_machine() -> str:
    """Returns the user and this machine, e.g. ana@desk, with the letters that tags may have."""
    try:
        name = f"{getuser()}@{gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        name = gethostname()
    return UNFIT.sub("-", name)[:LONGEST]


def as_dict(described: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tags of a described resource as a dictionary."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags") or []}
