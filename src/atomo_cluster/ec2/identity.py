"""Who is asking AWS, by a name that is the same tomorrow."""

from typing import Final

from atomo_cluster.ec2.aws import Aws

__all__ = ["caller", "owner_of"]

ROLE: Final = "assumed-role"
# IAM Identity Center names the session after the person, who is the same in every session; whoever
# else assumes a role names it as they like, and botocore after the second of the day.
PERSONAL: Final = "AWSReservedSSO_"


def caller(aws: Aws) -> str:
    """Who AWS says is calling, e.g. user/ana."""
    return owner_of(str(aws.call("sts.get_caller_identity")["Arn"]))


def owner_of(arn: str) -> str:
    """The end of an identity's name that no process changes: the user, or the role.

    >>> owner_of("arn:aws:iam::123456789012:user/ana")
    'user/ana'
    >>> owner_of("arn:aws:sts::123456789012:assumed-role/Trainer/botocore-session-1768000000")
    'assumed-role/Trainer'
    >>> owner_of("arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0a1b/ana@example.com")
    'assumed-role/AWSReservedSSO_Admin_0a1b/ana@example.com'
    """
    name = arn.split(":", 5)[-1]
    kind, *rest = name.split("/")
    if kind == ROLE and rest and not rest[0].startswith(PERSONAL):
        return f"{ROLE}/{rest[0]}"
    return name
