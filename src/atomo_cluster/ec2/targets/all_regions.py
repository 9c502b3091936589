"""The hosts of a cluster and of its owner in all regions of the account."""

from collections.abc import Sequence

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance, cluster_or_owner_instances
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import CloudError

__all__ = ["account_hosts", "account_regions"]


def account_regions(run: Run) -> list[str]:
    """Lists the regions that the account uses.

    Raises:
        CloudError: AWS does not say.
    """
    reply = run.aws.call("ec2.describe_regions")
    return sorted(region["RegionName"] for region in reply["Regions"])


def account_hosts(
    run: Run, regions: Sequence[str]
) -> tuple[dict[str, list[Instance]], dict[str, str]]:
    """Lists live hosts by region: of the cluster's name, and of all clusters of the owner.

    Returns:
        The hosts of regions that have some, and the errors of regions that do not answer.
    """
    hosts: dict[str, list[Instance]] = {}
    errors: dict[str, str] = {}
    for region in regions:
        aws = Aws(region, run.options.endpoint_url, run.warn)
        try:
            if listed := cluster_or_owner_instances(aws, run.owned):
                hosts[region] = listed
        except CloudError as error:
            errors[region] = str(error)
    return hosts, errors
