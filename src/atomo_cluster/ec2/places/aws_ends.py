"""Ends of hosts by AWS: a one-time schedule per host, beside the fuse inside the host.

A guest that hangs does not end itself. EventBridge Scheduler then terminates the host some minutes
after its fuse, with a role that ends only what carries the tags of the cluster. The schedules are
in a group of the cluster; a schedule that has run deletes itself.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.aws.profiles import DENIED, call_ignoring
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.places.end_role import (
    end_role_arn,
    has_end_role,
    make_end_role,
    remove_end_role,
)
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import YES
from atomo_cluster.errors import CloudError

__all__ = [
    "AFTER",
    "PRICE",
    "EndFailure",
    "UnseenEndsError",
    "create_schedules",
    "end_lines",
    "hosts_without_ends",
    "remove_ends",
    "remove_group",
    "set_ends",
]

AFTER: Final = timedelta(minutes=15)  # after the fuse, which counts from the boot
SOON: Final = timedelta(minutes=2)  # for a fuse that is past: AWS takes no earlier time
PRICE: Final = "$0.00 (14 million schedules a month are free, then $1.00 per million)"
THERE: Final = ("ConflictException",)
GONE: Final = ("ResourceNotFoundException",)
ROLE_TRIES, ROLE_S = 12, 5.0  # a new role takes some seconds to be known


class UnseenEndsError(CloudError):
    """The identity may not look at schedules: others may have made some."""


@dataclass(frozen=True)
class EndFailure:
    """The failure of ends by AWS."""

    text: str
    denied: bool  # the identity may not even look at schedules, and so has made none

    def is_error(self, cluster: Cluster) -> bool:
        """True if a command fails by it where AWS may end hosts at an earlier time."""
        return not self.denied or cluster.aws_end == YES


def set_ends(
    aws: Aws, cluster: Cluster, owned: ClusterTags, hosts: Sequence[Instance]
) -> EndFailure | None:
    """Schedules the ends of hosts by AWS, or moves them. Hosts of unknown fuse have none."""
    known = [host for host in hosts if host.fuse_known]
    if not cluster.aws_ends or not known:
        return None
    looked = False
    try:
        missing = not group_exists(aws, owned)
        looked = True
        role = make_end_role(aws, cluster, owned)
        if missing:  # last, so that where there is a group there is a role
            make_group(aws, owned)
        schedule_all(aws, owned, known, role)
    except CloudError as error:
        return EndFailure(str(error), not looked and error.code in DENIED)
    return None


def create_schedules(
    aws: Aws, cluster: Cluster, owned: ClusterTags, hosts: Sequence[Instance]
) -> str:
    """Schedules the ends of further hosts with the role that the launch has found.

    Returns the error; empty for none. Hosts of unknown fuse have none.
    """
    known = [host for host in hosts if host.fuse_known]
    if not cluster.aws_ends or not known:
        return ""
    try:
        role = end_role_arn(aws, cluster, owned)
        for host in known:
            schedule(aws, owned, host, role)
    except CloudError as error:
        return str(error)
    return ""


def schedule_all(aws: Aws, owned: ClusterTags, hosts: Sequence[Instance], role: str) -> None:
    """Makes or moves the schedules of hosts, also while the role is new."""
    for host in hosts:
        retry_new_role(lambda host=host: schedule(aws, owned, host, role))  # type: ignore[misc]


def group_exists(aws: Aws, owned: ClusterTags) -> bool:
    """True if the cluster has a group of schedules."""
    try:
        aws.call("scheduler.get_schedule_group", Name=owned.label)
    except CloudError as error:
        if error.code in GONE:
            return False
        raise
    return True


def make_group(aws: Aws, owned: ClusterTags) -> None:
    """Makes the group of the cluster's schedules."""
    call_ignoring(aws, THERE, "scheduler.create_schedule_group", Name=owned.label,
                  Tags=owned.specification("", {})["Tags"])  # fmt: skip


def schedule(aws: Aws, owned: ClusterTags, host: Instance, role: str) -> None:
    """Makes the schedule of a host, or moves the one that there is."""
    when = max(host.fuse + AFTER, datetime.now(timezone.utc) + SOON)
    described: dict[str, Any] = {
        "Name": host.id,
        "GroupName": owned.label,
        "ScheduleExpression": f"at({when:%Y-%m-%dT%H:%M:%S})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {"Arn": target(role), "RoleArn": role,
                   "Input": json.dumps({"InstanceIds": [host.id]})},
    }  # fmt: skip
    try:
        aws.call("scheduler.create_schedule", **described)
    except CloudError as error:
        if error.code not in THERE:
            raise
        aws.call("scheduler.update_schedule", **described)


def target(role: str) -> str:
    """Returns the ARN of the call that ends hosts, in the partition of a role.

    >>> target("arn:aws-cn:iam::1:role/x")
    'arn:aws-cn:scheduler:::aws-sdk:ec2:terminateInstances'
    """
    return f"arn:{role.split(':')[1]}:scheduler:::aws-sdk:ec2:terminateInstances"


def retry_new_role(act: Callable[[], None]) -> None:
    """Retries while the scheduler may not assume a new role yet."""
    for _ in range(ROLE_TRIES):
        try:
            return act()
        except CloudError as error:
            if error.code != "ValidationException" or "role" not in str(error).lower():
                raise
            time.sleep(ROLE_S)
    return act()


def has_group(aws: Aws, cluster: Cluster, owned: ClusterTags) -> bool:
    """True if the cluster has a group of schedules.

    With `aws_end: no` a caller without the right to look has made none.

    Raises:
        UnseenEndsError: the identity may not look.
        CloudError: AWS failed.
    """
    try:
        return group_exists(aws, owned)
    except CloudError as error:
        if error.code not in DENIED:
            raise
        if not cluster.aws_ends:
            return False
        raise UnseenEndsError(str(error), error.code) from error


def hosts_without_ends(aws: Aws, owned: ClusterTags, hosts: Sequence[Instance]) -> list[Instance]:
    """Returns the hosts that AWS does not end.

    Raises:
        CloudError: AWS does not say.
    """
    if not group_exists(aws, owned):
        return list(hosts)
    return [host for host in hosts if not has_schedule(aws, owned, host)]


def has_schedule(aws: Aws, owned: ClusterTags, host: Instance) -> bool:
    """True if AWS ends a host."""
    try:
        aws.call("scheduler.get_schedule", Name=host.id, GroupName=owned.label)
    except CloudError as error:
        if error.code in GONE:
            return False
        raise
    return True


def remove_ends(aws: Aws, cluster: Cluster, owned: ClusterTags, ids: Iterable[str]) -> None:
    """Deletes the schedules of hosts.

    Raises:
        CloudError: AWS refused.
    """
    if has_group(aws, cluster, owned):
        for id in ids:
            names = {"Name": id, "GroupName": owned.label}
            call_ignoring(aws, GONE, "scheduler.delete_schedule", **names)


def remove_group(aws: Aws, cluster: Cluster, owned: ClusterTags) -> str:
    """Deletes all schedules of the cluster and their role; returns the reason if the role stays.

    The group goes last: while it is there, another call tries again.

    Raises:
        CloudError: AWS failed; the message names the group.
    """
    try:
        if not has_group(aws, cluster, owned):
            return ""
        stays = remove_end_role(aws, owned)
        call_ignoring(aws, GONE, "scheduler.delete_schedule_group", Name=owned.label)
    except CloudError as error:
        raise CloudError(
            f"the schedules of ends by AWS are perhaps there, and cost nothing: group {owned.label}"
            f" in {aws.region}: {error}",
            error.code,
        ) from error
    return stays


def end_lines(aws: Aws, cluster: Cluster, owned: ClusterTags) -> list[str]:
    """Returns the text on ends by AWS, with their price, for plans."""
    if not cluster.aws_ends:
        return ["none by AWS (aws_end: no): a host that hangs may outlive its fuse"]
    minutes = int(AFTER.total_seconds() // 60)
    return [
        f"by AWS, {minutes} minutes after the fuse of a host that does not end itself",
        *outlook(aws, cluster, owned),
        f"EventBridge Scheduler: {PRICE}",
    ]


def outlook(aws: Aws, cluster: Cluster, owned: ClusterTags) -> list[str]:
    """Returns a line on what may keep a launch from scheduling ends; none: nothing is known."""
    try:
        group_exists(aws, owned)
        if has_end_role(aws, cluster, owned):
            return []
    except CloudError as error:
        return [f"PERHAPS NOT: {error}"]
    name = owned.end_role_name(aws.region)
    return [f"if this identity may make the role {name}: else see `iam --end-role`"]
