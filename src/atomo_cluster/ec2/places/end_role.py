"""The role with which EventBridge Scheduler ends hosts after their fuses.

A launch makes it where the identity may make roles. Elsewhere an administrator makes it once, by
the commands that `iam --end-role` prints.
"""

import json
import shlex
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.master_policy import end_policy
from atomo_cluster.ec2.aws.policy_scope import PolicyScope
from atomo_cluster.ec2.aws.profiles import DENIED, GONE, POLICY, call_ignoring
from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.places.adoption import repeat
from atomo_cluster.ec2.places.profiles import account, make_role
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError

__all__ = ["end_role_arn", "end_role_commands", "has_end_role", "make_end_role", "remove_end_role"]

SERVICE: Final = "scheduler.amazonaws.com"


def end_scope(aws: Aws, cluster: Cluster, owned: ClusterTags) -> PolicyScope:
    """Returns the scope of the role: the cluster in one region of the caller's account."""
    return PolicyScope(cluster.at(aws.region), account(aws), owned.owner)


def end_role_arn(aws: Aws, cluster: Cluster, owned: ClusterTags) -> str:
    """Returns the ARN of the role that ends the cluster's hosts in a region."""
    scope = end_scope(aws, cluster, owned)
    return scope.iam(scope.end_roles, "role")[0]


def has_end_role(aws: Aws, cluster: Cluster, owned: ClusterTags) -> bool:
    """True if the role exists, with the policy that ends the cluster's hosts and nothing else.

    Raises:
        CloudError: AWS does not say.
    """
    return is_made(aws, end_scope(aws, cluster, owned))


def is_made(aws: Aws, scope: PolicyScope) -> bool:
    """True if the role of a scope exists, with its policy."""
    names = {"RoleName": scope.end_roles[0], "PolicyName": POLICY}
    try:
        answer = aws.call("iam.get_role_policy", **names)
    except CloudError as error:
        if error.code in GONE:
            return False
        raise
    return bool(answer["PolicyDocument"] == end_policy(scope))


def make_end_role(aws: Aws, cluster: Cluster, owned: ClusterTags) -> str:
    """Makes the role that ends the cluster's hosts, unless it exists, and returns its ARN.

    Raises:
        CloudError: AWS refused; the message says how an administrator makes it.
    """
    scope = end_scope(aws, cluster, owned)
    name = scope.end_roles[0]
    tags = owned.specification("", {})["Tags"]
    if not is_made(aws, scope):
        try:
            make_role(aws, owned, name, trust(scope), tags, scope.end_boundary)
            give_policy(aws, name, end_policy(scope))
        except CloudError as error:
            if error.code not in DENIED:
                raise
            raise CloudError(
                f"{error}; the role {name} is missing, and an administrator makes it once: by "
                "what `iam --end-role` prints",
                error.code,
            ) from error
    return scope.iam([name], "role")[0]


def give_policy(aws: Aws, name: str, policy: dict[str, Any]) -> None:
    """Gives a role its policy, also where the role was made seconds ago."""
    names = {"RoleName": name, "PolicyName": POLICY}
    put = "iam.put_role_policy"
    repeat(lambda: aws.call(put, **names, PolicyDocument=json.dumps(policy)), GONE)


def trust(scope: PolicyScope) -> dict[str, Any]:
    """Returns the policy that lets schedules of the account assume the role."""
    statement = {"Effect": "Allow", "Principal": {"Service": SERVICE}, "Action": "sts:AssumeRole",
                 "Condition": {"StringEquals": {"aws:SourceAccount": scope.account}}}  # fmt: skip
    return {"Version": "2012-10-17", "Statement": [statement]}


def end_role_commands(scope: PolicyScope) -> list[str]:
    """Returns the commands of AWS's CLI by which an administrator makes the roles, once."""
    commands = list[str]()
    for region in scope.cluster.all_regions:
        place = PolicyScope(scope.cluster.at(region), scope.account, scope.owner)
        name = ["--role-name", place.end_roles[0]]
        bound = ["--permissions-boundary", place.end_boundary] if place.end_boundary else []
        document = json.dumps(trust(place))
        role = ["aws", "iam", "create-role", *name, "--assume-role-policy-document", document]
        policy = ["aws", "iam", "put-role-policy", *name, "--policy-name", POLICY]
        policy += ["--policy-document", json.dumps(end_policy(place))]
        commands += [shlex.join([*role, *bound]), shlex.join(policy)]
    return commands


def remove_end_role(aws: Aws, owned: ClusterTags) -> str:
    """Deletes the role; returns the reason if this identity may not, as where others made it.

    Raises:
        CloudError: AWS failed.
    """
    name = owned.end_role_name(aws.region)
    try:
        call_ignoring(aws, GONE, "iam.delete_role_policy", RoleName=name, PolicyName=POLICY)
        call_ignoring(aws, GONE, "iam.delete_role", RoleName=name)
    except CloudError as error:
        if error.code not in DENIED:
            raise
        return f"the role {name} stays for the next launch, and costs nothing: {error}"
    return ""
