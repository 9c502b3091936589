"""Instance profiles of the hosts, made with the cluster.

The master needs no user's credentials: EC2 gives it temporary ones. A call whose answer got lost is
repeated, or the role or profile that it has made is adopted by its name and tags.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.master_policy import master_policy
from atomo_cluster.ec2.aws.policy_scope import PolicyScope
from atomo_cluster.ec2.aws.profiles import (
    GONE,
    INSTANCE_PROFILE,
    POLICY,
    PROFILE,
    ROLE_QUERY,
    call_ignoring,
    has_part,
    hosts_name,
)
from atomo_cluster.ec2.aws.session_manager import CORE
from atomo_cluster.ec2.aws.tags import LAUNCH, ClusterTags
from atomo_cluster.ec2.places.adoption import make_or_adopt, repeat
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError

__all__ = ["account", "make_profiles", "make_role"]

Policy = Mapping[str, Any]
Tags = Sequence[Mapping[str, str]]
THERE: Final = ("EntityAlreadyExists", "LimitExceeded")  # the latter: it has its role already
TRUST: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def make_profiles(aws: Aws, cluster: Cluster, owned: ClusterTags, launch: str) -> tuple[str, str]:
    """Makes the profiles that hosts need, for the master and for the others; empty: none.

    The master of a supervised cluster also has the permissions of its supervisor.
    """
    if not cluster.makes_roles:
        return "", ""
    scope = PolicyScope(cluster, account(aws), owned.owner)
    policy = json.dumps(master_policy(scope)) if cluster.needs_profile else ""
    core = (CORE,) if cluster.managed else ()

    def made(name: str, policy: str) -> str:
        tags = owned.specification(PROFILE, {LAUNCH: launch})["Tags"]
        make_role(aws, owned, name, TRUST, tags, scope.boundary)
        return fill_profile(aws, owned, name, launch, policy, core)

    hosts_profile = made(hosts_name(owned, aws.region), "") if core else ""
    if not policy:
        return hosts_profile, hosts_profile
    return made(owned.role_name(aws.region), policy), hosts_profile


def account(aws: Aws) -> str:
    """Returns the number of the caller's account."""
    return str(aws.call("sts.get_caller_identity")["Account"])


def make_role(
    aws: Aws, owned: ClusterTags, name: str, trust: Policy, tags: Tags, boundary: str
) -> None:
    """Makes a role, unless it exists, whose rights the boundary limits; empty: none does.

    Raises:
        CloudError: AWS refused, or the account has no such boundary.
    """
    bound = {"PermissionsBoundary": boundary} if boundary else {}
    document = json.dumps(trust)

    def make() -> str:
        call_ignoring(
            aws, THERE, "iam.create_role", RoleName=name, AssumeRolePolicyDocument=document,
            Tags=tags, **bound,
        )  # fmt: skip
        return name

    try:
        make_or_adopt(make, lambda: name if has_part(aws, owned, ROLE_QUERY, name) else None)
    except CloudError as error:
        if error.code not in GONE:
            raise
        policy = boundary.rpartition("/")[2]
        raise CloudError(
            f"{error}; the account has no policy {policy} to bound roles with: `iam --boundary` "
            f"prints it, and an administrator makes it: `aws iam create-policy --policy-name "
            f"{policy} --policy-document file://...`. permissions_boundary names another",
            error.code,
        ) from error


def fill_profile(
    aws: Aws, owned: ClusterTags, name: str, launch: str, policy: str, managed: tuple[str, ...]
) -> str:
    """Gives a role its policies, makes the missing parts of its profile, and returns its name."""
    tags = owned.specification(PROFILE, {LAUNCH: launch})["Tags"]

    def change(action: str, **arguments: Any) -> None:
        repeat(lambda: call_ignoring(aws, THERE, action, **arguments), GONE)

    def make() -> str:
        call_ignoring(
            aws, THERE, "iam.create_instance_profile", InstanceProfileName=name, Tags=tags
        )
        return name

    if policy:
        change("iam.put_role_policy", RoleName=name, PolicyName=POLICY, PolicyDocument=policy)
    for arn in managed:
        change("iam.attach_role_policy", RoleName=name, PolicyArn=arn)
    make_or_adopt(make, lambda: name if has_part(aws, owned, INSTANCE_PROFILE, name) else None)
    change("iam.add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)
    return name
