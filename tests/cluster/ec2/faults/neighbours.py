"""Clusters of the same name and owner in another region and in another account.

No command may touch them. Their hosts are counted after every fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cluster.ec2.support.cloud import UBUNTU, Cloud

from atomo_cluster.ec2.aws.tags import CLUSTER, HOURS, OWNER, ROLE

__all__ = ["ACCOUNT", "REGION", "Neighbours"]

REGION: Final = "eu-west-1"
ACCOUNT: Final = "210987654321"
HOSTS: Final = 2  # of each
RUNNING: Final = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]


@dataclass(frozen=True)
class Neighbours:
    """The clients of the other places, by name of the place."""

    clients: dict[str, Any]

    @classmethod
    def launch(cls, cloud: Cloud) -> Neighbours:
        """Launches a cluster in each other place."""
        clients = {REGION: cloud.moto.region(REGION), ACCOUNT: cloud.moto.account(ACCOUNT)}
        tags = {CLUSTER: "test", OWNER: "user/moto", ROLE: "worker", HOURS: "8"}
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        for client in clients.values():
            client.run_instances(
                ImageId=UBUNTU, MinCount=HOSTS, MaxCount=HOSTS, InstanceType="m5.large",
                TagSpecifications=[{"ResourceType": kind, "Tags": listed}
                                   for kind in ("instance", "volume")],
            )  # fmt: skip
        return cls(clients)

    def touched(self) -> list[str]:
        """Lists the places whose hosts no longer run, or have others beside them."""
        return [place for place, client in self.clients.items() if counted(client) != HOSTS]


def counted(client: Any) -> int:
    """Counts the hosts that run."""
    batches = client.describe_instances(Filters=RUNNING)["Reservations"]
    return sum(len(batch["Instances"]) for batch in batches)
