"""The instance profile of the master: what it may ask of AWS, made and removed with the cluster.

The master needs no key of anybody's: EC2 hands it passwords that last for hours. IAM is not of a
region, and its things are found by their names, which derive from cluster and owner.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.config import Cluster
from atomo_cluster.ec2.policy import master_policy
from atomo_cluster.ec2.tags import CLUSTER, LAUNCH, OWNER, Owned, as_dict
from atomo_cluster.errors import CloudError

__all__ = ["PROFILE", "make_profile", "profiles", "remove_profile"]

PROFILE: Final = "instance-profile"
THERE: Final = ("EntityAlreadyExists", "LimitExceeded")  # the latter: it has its role already
GONE: Final = ("NoSuchEntity",)
# Who may not look at IAM has made nothing there, and is not to be troubled with it.
UNSEEN: Final = (*GONE, "AccessDenied", "AccessDeniedException", "OptInRequired")
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


def make_profile(aws: Aws, cluster: Cluster, owned: Owned, launch: str) -> str:
    """Makes what is missing of the profile, and returns its name. Its policy is made anew."""
    name = owned.label
    tags = owned.specification(PROFILE, {LAUNCH: launch})["Tags"]
    said = json.dumps(TRUST)
    attempted(
        aws, THERE, "iam.create_role", RoleName=name, AssumeRolePolicyDocument=said, Tags=tags
    )
    policy = json.dumps(master_policy(cluster))
    aws.call("iam.put_role_policy", RoleName=name, PolicyName=POLICY, PolicyDocument=policy)
    attempted(aws, THERE, "iam.create_instance_profile", InstanceProfileName=name, Tags=tags)
    both = {"InstanceProfileName": name, "RoleName": name}
    attempted(aws, THERE, "iam.add_role_to_instance_profile", **both)
    return name


def profiles(aws: Aws, filters: list[dict[str, Any]]) -> list[str]:
    """The profile or role that carries these tags, which has one name; none: there is neither.

    Raises:
        CloudError: AWS does not say.
    """
    wanted = {one["Name"].removeprefix("tag:"): one["Values"][0] for one in filters}
    name = Owned(wanted[CLUSTER], wanted[OWNER]).label
    asked = (("iam.get_instance_profile", "InstanceProfile", "InstanceProfileName"),
             ("iam.get_role", "Role", "RoleName"))  # fmt: skip
    for action, key, argument in asked:
        try:
            tags = as_dict(aws.call(action, **{argument: name})[key])
        except CloudError as error:
            if error.code not in UNSEEN:
                raise
            continue
        if carries(tags, wanted):
            return [name]
    return []


def carries(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether something has all of these tags."""
    return all(tags.get(key) == value for key, value in wanted.items())


def remove_profile(aws: Aws, name: str) -> None:
    """Deletes profile and role, whichever of them there are."""
    both = {"InstanceProfileName": name, "RoleName": name}
    attempted(aws, GONE, "iam.remove_role_from_instance_profile", **both)
    attempted(aws, GONE, "iam.delete_instance_profile", InstanceProfileName=name)
    attempted(aws, GONE, "iam.delete_role_policy", RoleName=name, PolicyName=POLICY)
    attempted(aws, GONE, "iam.delete_role", RoleName=name)


def attempted(aws: Aws, forgiven: tuple[str, ...], action: str, **arguments: Any) -> None:
    """A call that may find its work done already."""
    try:
        aws.call(action, **arguments)
    except CloudError as error:
        if error.code not in forgiven:
            raise
