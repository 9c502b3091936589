"""Where results are: on the master's disk, or on a folder that outlives it."""

from typing import final

from atomo_cluster.ec2.config import Cluster

__all__ = ["OnHosts"]


@final
class OnHosts:
    """Results that stay where the job writes them."""

    def __init__(self, cluster: Cluster) -> None:
        self._shared = bool(cluster.nfs_ip_address)

    def sync(self) -> None:
        """There is nowhere to take them."""

    @property
    def safe(self) -> bool:
        """Whether they outlive the master."""
        return self._shared
