"""Stopping and starting hosts: EC2 keeps the disks, but not memory or public addresses."""

from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.errors import CloudError, LeftBehind

__all__ = [
    "RUNNING_STATES",
    "STOPPED_STATES",
    "STOP_S",
    "start_instances",
    "stop_instances",
]

RUNNING_STATES: Final = ("pending", "running")
STOPPED_STATES: Final = ("stopping", "stopped")
STOP_S: Final = 600


def stop_instances(aws: Aws, owned: ClusterTags, ids: Sequence[str]) -> None:
    """Stops instances and waits until they are stopped.

    Raises:
        CloudError: AWS refused, and all of them still run.
        LeftBehind: some stop and others do not, or their states are unknown.
    """
    change_states(aws, owned, ids, "stop", RUNNING_STATES, "instance_stopped")


def start_instances(aws: Aws, owned: ClusterTags, ids: Sequence[str]) -> None:
    """Starts stopped instances and waits until they run.

    Raises:
        CloudError: AWS refused, and all of them are still stopped.
        LeftBehind: some run and others do not, or their states are unknown.
    """
    change_states(aws, owned, ids, "start", STOPPED_STATES, "instance_running")


def change_states(
    aws: Aws, owned: ClusterTags, ids: Sequence[str], verb: str, before: Sequence[str], waiter: str
) -> None:
    """Stops or starts instances.

    A lost response is not a refusal: after an error the states of the instances decide.
    """
    try:
        aws.call(f"ec2.{verb}_instances", InstanceIds=list(ids))
    except CloudError as error:
        hosts = states_after_error(aws, owned, ids, error)
        if all(host.state in before for host in hosts):
            raise
        if any(host.state in before for host in hosts):
            raise LeftBehind(f"{error}; {states(hosts)}: `status` tells, `{verb}_hosts` again goes "
                             "on") from error  # fmt: skip
    try:
        aws.wait(waiter, STOP_S, InstanceIds=list(ids))
    except CloudError as error:
        hosts = states_after_error(aws, owned, ids, error)
        raise LeftBehind(f"{error}; {states(hosts)}: `status` shows the progress") from error


def states_after_error(
    aws: Aws, owned: ClusterTags, ids: Sequence[str], cause: CloudError
) -> list[Instance]:
    """Returns the instances in their present states, after a failed call."""
    try:
        return [host for host in instances(aws, owned) if host.id in ids]
    except CloudError as error:
        raise LeftBehind(
            f"{cause}; and AWS does not say which of these run, and cost: {', '.join(ids)} "
            f"({error}); `status` shows it later"
        ) from cause


def states(hosts: Sequence[Instance]) -> str:
    """Formats the state of each instance."""
    return ", ".join(f"{host.id} is {host.state}" for host in hosts)
