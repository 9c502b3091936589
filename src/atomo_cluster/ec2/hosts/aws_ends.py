"""Ends of hosts by AWS: a one-time schedule per host, beside the fuse inside the host.

A guest that hangs does not end itself. EventBridge Scheduler then terminates the host some minutes
after its fuse, with a role that ends only what carries the tags of the cluster. The schedules are
in a group of the cluster; a schedule that has run deletes itself.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.aws.master_policy import end_policy
from atomo_cluster.ec2.aws.policy_scope import PolicyScope
from atomo_cluster.ec2.aws.profiles import call_ignoring
from atomo_cluster.ec2.aws.tags import ENDS, ClusterTags
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError

__all__ = ["AFTER", "PRICE", "end_lines", "remove_ends", "remove_group", "set_ends"]

AFTER: Final = timedelta(minutes=15)  # after the fuse, which counts from the boot
SOON: Final = timedelta(minutes=2)  # for a fuse that is past: AWS takes no earlier time
PRICE: Final = "$0.00 (14 million schedules a month are free, then $1.00 per million)"
SERVICE: Final = "scheduler.amazonaws.com"
TARGET: Final = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
POLICY: Final = "atomo"
THERE: Final = ("EntityAlreadyExists", "ConflictException")
GONE: Final = ("NoSuchEntity", "ResourceNotFoundException")
DENIED: Final = ("AccessDenied", "AccessDeniedException")
ROLE_TRIES, ROLE_S = 12, 5.0  # a new role takes some seconds to be known


def set_ends(aws: Aws, cluster: Cluster, owned: ClusterTags, hosts: Sequence[Instance]) -> str:
    """Schedules the ends of hosts by AWS, or moves them; returns the error, empty for none.

    Hosts of unknown fuse have none.
    """
    known = [host for host in hosts if host.fuse_known]
    if not cluster.aws_end or not known:
        return ""
    try:
        make_group(aws, owned)
        role = make_role(aws, cluster, owned)
        for host in known:
            retry_new_role(lambda host=host: schedule(aws, owned, host, role))  # type: ignore[misc]
    except CloudError as error:
        return str(error)
    return ""


def make_group(aws: Aws, owned: ClusterTags) -> None:
    """Makes the group of the cluster's schedules, unless it exists."""
    try:
        aws.call("scheduler.get_schedule_group", Name=owned.label)
    except CloudError as error:
        if error.code not in GONE:
            raise
        call_ignoring(aws, THERE, "scheduler.create_schedule_group", Name=owned.label,
                      Tags=owned.specification("", {})["Tags"])  # fmt: skip


def make_role(aws: Aws, cluster: Cluster, owned: ClusterTags) -> str:
    """Makes the role that ends the cluster's hosts, and returns its ARN."""
    account = str(aws.call("sts.get_caller_identity")["Account"])
    scope = PolicyScope(cluster, account, owned.owner)
    name = role_name(aws, owned)
    trust = {"Effect": "Allow", "Principal": {"Service": SERVICE}, "Action": "sts:AssumeRole",
             "Condition": {"StringEquals": {"aws:SourceAccount": account}}}  # fmt: skip
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    bound = {"PermissionsBoundary": scope.boundary} if scope.boundary else {}
    call_ignoring(aws, THERE, "iam.create_role", RoleName=name, AssumeRolePolicyDocument=document,
                  Tags=owned.specification("", {})["Tags"], **bound)  # fmt: skip
    aws.call("iam.put_role_policy", RoleName=name, PolicyName=POLICY,
             PolicyDocument=json.dumps(end_policy(scope)))  # fmt: skip
    return scope.iam([name], "role")[0]


def role_name(aws: Aws, owned: ClusterTags) -> str:
    """Returns the name of the role that ends the hosts of a region."""
    return f"{owned.role_name(aws.region)}{ENDS}"


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
        "Target": {"Arn": TARGET, "RoleArn": role,
                   "Input": json.dumps({"InstanceIds": [host.id]})},
    }  # fmt: skip
    try:
        aws.call("scheduler.create_schedule", **described)
    except CloudError as error:
        if error.code not in THERE:
            raise
        aws.call("scheduler.update_schedule", **described)


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
    """
    try:
        aws.call("scheduler.get_schedule_group", Name=owned.label)
    except CloudError as error:
        if error.code in GONE or (not cluster.aws_end and error.code in DENIED):
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
    """Deletes all schedules of the cluster and their role; returns the error, empty for none.

    The group goes last: while it is there, another call tries again.
    """
    names = {"RoleName": role_name(aws, owned)}
    try:
        if has_group(aws, cluster, owned):
            call_ignoring(aws, GONE, "iam.delete_role_policy", **names, PolicyName=POLICY)
            call_ignoring(aws, GONE, "iam.delete_role", **names)
            call_ignoring(aws, GONE, "scheduler.delete_schedule_group", Name=owned.label)
    except CloudError as error:
        return str(error)
    return ""


def end_lines(cluster: Cluster) -> list[str]:
    """Returns the text on ends by AWS, with their price, for plans."""
    if not cluster.aws_end:
        return ["none by AWS (aws_end: no): a host that hangs may outlive its fuse; aws_end: yes"]
    minutes = int(AFTER.total_seconds() // 60)
    return [
        f"by AWS, {minutes} minutes after the fuse of a host that does not end itself",
        f"EventBridge Scheduler: {PRICE}",
    ]
