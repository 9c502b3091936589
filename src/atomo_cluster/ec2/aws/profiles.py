"""Instance profiles of the hosts, found and removed with the cluster; `places/profiles.py` makes
them.

The master needs no user's credentials: EC2 gives it temporary ones. IAM has no regions; its
resources are found by names that derive from cluster, owner and region.
"""

from collections.abc import Mapping
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.session_manager import CORE
from atomo_cluster.ec2.aws.tags import CLUSTER, HOSTS, OWNER, ClusterTags, as_dict
from atomo_cluster.errors import CloudError

__all__ = [
    "DENIED",
    "GONE",
    "INSTANCE_PROFILE",
    "POLICY",
    "PROFILE",
    "ROLE_QUERY",
    "call_ignoring",
    "find_hosts_profile",
    "has_part",
    "hosts_name",
    "is_denied",
    "profiles",
    "remove_profile",
]

PROFILE: Final = "instance-profile"
GONE: Final = ("NoSuchEntity",)
# Who may not look at IAM may have made nothing there.
DENIED: Final = ("AccessDenied", "AccessDeniedException", "OptInRequired")
POLICY: Final = "atomo"
Query = tuple[str, str, str]  # a call, the key of its answer, and the argument of the name
INSTANCE_PROFILE: Final = ("iam.get_instance_profile", "InstanceProfile", "InstanceProfileName")
ROLE_QUERY: Final = ("iam.get_role", "Role", "RoleName")


def hosts_name(owned: ClusterTags, region: str) -> str:
    """Returns the name of the profile that only admits Session Manager."""
    return f"{owned.role_name(region)}{HOSTS}"


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
    parts = (tags_of_part(aws, query, name) for query in (INSTANCE_PROFILE, ROLE_QUERY))
    return any(tags is not None and has_tags(tags, tag_values) for tags in parts)


def has_part(aws: Aws, owned: ClusterTags, query: Query, name: str) -> bool:
    """True if the cluster has a profile, or a role, of this name."""
    tags = tags_of_part(aws, query, name)
    return tags is not None and owned.owns(tags)


def tags_of_part(aws: Aws, query: Query, name: str) -> Mapping[str, str] | None:
    """Returns the tags of a profile, or of a role; None if there is none.

    Raises:
        CloudError: AWS does not answer, or does not allow the look.
    """
    action, key, argument = query
    try:
        return as_dict(aws.call(action, **{argument: name})[key])
    except CloudError as error:
        if error.code not in GONE:
            raise
        return None


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
