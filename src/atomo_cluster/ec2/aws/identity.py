"""The identity of the caller, by a name that stays the same across sessions."""

from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws.client import Aws

__all__ = ["Identity", "identity_of", "owner_of"]

ROLE: Final = "assumed-role"
# IAM Identity Center names the session after the person, who is the same in every session; whoever
# else assumes a role names it as they like, and botocore after the second of the day.
PERSONAL: Final = "AWSReservedSSO_"


@dataclass(frozen=True)
class Identity:
    """The caller, as AWS knows it."""

    account: str  # its number
    name: str  # e.g. user/ana


def identity_of(aws: Aws) -> Identity:
    """Returns the identity of the caller as AWS reports it."""
    reply = aws.call("sts.get_caller_identity")
    return Identity(str(reply["Account"]), owner_of(str(reply["Arn"])))


def owner_of(arn: str) -> str:
    """Returns the stable end of an ARN: the user, or the role.

    >>> owner_of("arn:aws:iam::123456789012:user/ana")
    'user/ana'
    >>> owner_of("arn:aws:sts::123456789012:assumed-role/Trainer/botocore-session-1768000000")
    'assumed-role/Trainer'
    >>> owner_of("arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0a1b/ana@example.com")
    'assumed-role/AWSReservedSSO_Admin_0a1b/ana@example.com'
    """
    name = arn.split(":", 5)[-1]
    kind, *path = name.split("/")
    if kind == ROLE and path and not path[0].startswith(PERSONAL):
        return f"{ROLE}/{path[0]}"
    return name
