"""Instance profiles of the hosts, made and removed with the cluster.

The master needs no user's credentials: EC2 gives it temporary ones. IAM has no regions; its
resources are found by names that derive from cluster, owner and region.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.master_policy import master_policy
from atomo_cluster.ec2.aws.policy_scope import PolicyScope
from atomo_cluster.ec2.aws.session_manager import CORE
from atomo_cluster.ec2.aws.tags import CLUSTER, HOSTS, LAUNCH, OWNER, ClusterTags, as_dict
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError

__all__ = [
    "PROFILE",
    "call_ignoring",
    "find_hosts_profile",
    "is_denied",
    "make_profiles",
    "profiles",
    "remove_profile",
]

PROFILE: Final = "instance-profile"
THERE: Final = ("EntityAlreadyExists", "LimitExceeded")  # the latter: it has its role already
GONE: Final = ("NoSuchEntity",)
# Who may not look at IAM may have made nothing there.
DENIED: Final = ("AccessDenied", "AccessDeniedException", "OptInRequired")
POLICY: Final = "atomo"
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
        make_role(aws, owned, name, launch, scope.boundary)
        return fill_profile(aws, owned, name, launch, policy, core)

    hosts_profile = made(hosts_name(owned, aws.region), "") if core else ""
    if not policy:
        return hosts_profile, hosts_profile
    return made(owned.role_name(aws.region), policy), hosts_profile


def account(aws: Aws) -> str:
    """Returns the number of the caller's account."""
    return str(aws.call("sts.get_caller_identity")["Account"])


def hosts_name(owned: ClusterTags, region: str) -> str:
    """Returns the name of the profile that only admits Session Manager."""
    return f"{owned.role_name(region)}{HOSTS}"


def make_role(aws: Aws, owned: ClusterTags, name: str, launch: str, boundary: str) -> None:
    """Makes a role, unless it exists, whose rights the boundary limits; empty: none does.

    Raises:
        CloudError: AWS refused, or the account has no such boundary.
    """
    tags = owned.specification(PROFILE, {LAUNCH: launch})["Tags"]
    bound = {"PermissionsBoundary": boundary} if boundary else {}
    trust = json.dumps(TRUST)
    try:
        call_ignoring(
            aws, THERE, "iam.create_role", RoleName=name, AssumeRolePolicyDocument=trust,
            Tags=tags, **bound,
        )  # fmt: skip
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
    if policy:
        aws.call("iam.put_role_policy", RoleName=name, PolicyName=POLICY, PolicyDocument=policy)
    for arn in managed:
        aws.call("iam.attach_role_policy", RoleName=name, PolicyArn=arn)
    call_ignoring(aws, THERE, "iam.create_instance_profile", InstanceProfileName=name, Tags=tags)
    names = {"InstanceProfileName": name, "RoleName": name}
    call_ignoring(aws, THERE, "iam.add_role_to_instance_profile", **names)
    return name


def profiles(aws: Aws, filters: list[dict[str, Any]]) -> list[str]:
    """Lists the profiles or roles with these tags, by name; a profile and its role share one.

    Raises:
        CloudError: AWS does not answer, or does not allow the look: see `is_denied`.
    """
    tag_values = {
        condition["Name"].removeprefix("tag:"): condition["Values"][0] for condition in filters
    }
    owned = ClusterTags(tag_values[CLUSTER], tag_values[OWNER])
    names = owned.role_names(aws.region)
    return [name for name in names if profile_exists(aws, name, tag_values)]


def find_hosts_profile(aws: Aws, owned: ClusterTags) -> str:
    """Returns the profile that Session Manager needs on workers; empty if the cluster has none.

    Raises:
        CloudError: AWS does not say, and without its profile a worker would be out of reach.
    """
    name = hosts_name(owned, aws.region)
    try:
        described = aws.call("iam.get_instance_profile", InstanceProfileName=name)
    except CloudError as error:
        if error.code in GONE:
            return ""
        raise
    return name if owned.owns(as_dict(described["InstanceProfile"])) else ""


def is_denied(error: CloudError) -> bool:
    """True if the identity may not look at IAM."""
    return error.code in DENIED


def profile_exists(aws: Aws, name: str, tag_values: Mapping[str, str]) -> bool:
    """True if a profile or a role of this name has these tags."""
    queries = (("iam.get_instance_profile", "InstanceProfile", "InstanceProfileName"),
             ("iam.get_role", "Role", "RoleName"))  # fmt: skip
    for action, key, argument in queries:
        try:
            tags = as_dict(aws.call(action, **{argument: name})[key])
        except CloudError as error:
            if error.code not in GONE:
                raise
            continue
        if has_tags(tags, tag_values):
            return True
    return False


def has_tags(tags: Mapping[str, str], required: Mapping[str, str]) -> bool:
    """True if a resource has all of these tags."""
    return all(tags.get(key) == value for key, value in required.items())


def remove_profile(aws: Aws, name: str) -> None:
    """Deletes the profile and the role that exist."""
    names = {"InstanceProfileName": name, "RoleName": name}
    call_ignoring(aws, GONE, "iam.remove_role_from_instance_profile", **names)
    call_ignoring(aws, GONE, "iam.delete_instance_profile", InstanceProfileName=name)
    if admits_session_manager(aws, name):
        call_ignoring(aws, GONE, "iam.detach_role_policy", RoleName=name, PolicyArn=CORE)
    call_ignoring(aws, GONE, "iam.delete_role_policy", RoleName=name, PolicyName=POLICY)
    call_ignoring(aws, GONE, "iam.delete_role", RoleName=name)


def admits_session_manager(aws: Aws, name: str) -> bool:
    """True if a role admits Session Manager; false if the caller may not look."""
    try:
        attached = aws.call("iam.list_attached_role_policies", RoleName=name)["AttachedPolicies"]
    except CloudError:
        return False  # if it does, deleting the role says so
    return any(policy["PolicyArn"] == CORE for policy in attached)


def call_ignoring(aws: Aws, forgiven: tuple[str, ...], action: str, **arguments: Any) -> None:
    """Makes a call and ignores the errors that mean that its work is already done."""
    try:
        aws.call(action, **arguments)
    except CloudError as error:
        if error.code not in forgiven:
            raise
