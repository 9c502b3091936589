"""The owners in the ledger of this machine, for the time when AWS does not say who asks."""

import json
from typing import Final

from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["LEDGER", "recorded_owners"]

LEDGER: Final = "hosts.json"  # see atomo_cluster.ec2.money.ledger


def recorded_owners(cluster: Cluster) -> list[str]:
    """Lists the owners of the hosts that this machine has recorded; none if it cannot be read."""
    try:
        records = json.loads((cluster.state / LEDGER).read_text())
        return sorted({str(record["owner"]) for record in records})
    except (OSError, ValueError, TypeError, KeyError):
        return []
