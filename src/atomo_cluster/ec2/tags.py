"""The tags that make a cluster: whatever does not carry both is not ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

__all__ = ["CLUSTER", "GPUS", "HOURS", "IMAGE", "LAUNCH", "OWNER", "ROLE", "Owned", "as_dict"]

CLUSTER: Final = "atomo:cluster"
OWNER: Final = "atomo:owner"
ROLE: Final = "atomo:role"  # master or worker
LAUNCH: Final = "atomo:launch"  # the run of `launch` that made it, for the roll-back
HOURS: Final = "atomo:max-hours"
IMAGE: Final = "atomo:image"  # of images: the cluster that they are of
GPUS: Final = "atomo:gpus"  # of images: whether they have a driver


@dataclass(frozen=True)
class Owned:
    """Whose things, and of which cluster."""

    cluster: str
    owner: str
    further: tuple[tuple[str, str], ...] = ()  # the user's own; nothing is found by them

    @property
    def label(self) -> str:
        """A name in AWS that two owners of equally named clusters do not share."""
        return f"atomo-{self.cluster}-{sha256(self.owner.encode()).hexdigest()[:8]}"

    def filters(self, **more: str) -> list[dict[str, Any]]:
        """What finds this cluster's things and no other's."""
        wanted = {f"tag:{CLUSTER}": self.cluster, f"tag:{OWNER}": self.owner}
        return [{"Name": name, "Values": [value]} for name, value in (wanted | more).items()]

    def owns(self, tags: Mapping[str, str]) -> bool:
        """Whether these tags are those of this cluster."""
        return tags.get(CLUSTER) == self.cluster and tags.get(OWNER) == self.owner

    def specification(self, kind: str, extra: Mapping[str, str]) -> dict[str, Any]:
        """The tags of a new thing, in the form that EC2 takes."""
        tags = {**dict(self.further), CLUSTER: self.cluster, OWNER: self.owner, **extra}
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        return {"ResourceType": kind, "Tags": listed}


def as_dict(described: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a thing that EC2 described."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags") or []}
