"""What an identity must be allowed, as a policy of IAM: no more than the commands call."""

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["NOT_NEEDED", "policy"]

LOOKED_AT: Final = (
    "Fleets", "Images", "InstanceTypeOfferings", "InstanceTypes", "Instances", "KeyPairs",
    "LaunchTemplates", "NetworkInterfaces", "PlacementGroups", "SecurityGroups",
    "SpotInstanceRequests", "SpotPriceHistory", "Subnets", "Tags", "Volumes",
)  # fmt: skip
MADE: Final = (
    "RunInstances", "CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress", "AuthorizeSecurityGroupEgress",
    "RevokeSecurityGroupIngress", "ImportKeyPair", "CreatePlacementGroup",
)  # fmt: skip
ENDED: Final = (
    "TerminateInstances", "CancelSpotInstanceRequests", "DeleteFleets", "DeleteLaunchTemplate",
    "DeleteVolume", "DeleteNetworkInterface", "DeletePlacementGroup", "DeleteKeyPair",
    "DeleteSecurityGroup",
)  # fmt: skip
TAGGING: Final = (
    "RunInstances", "CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup", "ImportKeyPair",
    "CreatePlacementGroup",
)  # fmt: skip
ROLES: Final = ("ec2fleet.amazonaws.com", "spot.amazonaws.com")
NOT_NEEDED: Final = "ToBeToldMoreAndNotNeeded"
ADVISORY: Final = (
    "pricing:GetProducts",
    "servicequotas:ListServiceQuotas",
    "ssm:GetParameters",
    "elasticfilesystem:DescribeFileSystems",
    "elasticfilesystem:DescribeMountTargets",
    "elasticfilesystem:DescribeMountTargetSecurityGroups",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
)


def policy() -> dict[str, Any]:
    """The policy, in the form that IAM takes."""
    looked = [f"ec2:Describe{name}" for name in LOOKED_AT]
    return {
        "Version": "2012-10-17",
        "Statement": [
            allowed("Look", ["sts:GetCallerIdentity", "ec2:GetConsoleOutput", *looked]),
            allowed("Make", [f"ec2:{name}" for name in MADE]),
            allowed(
                "TagWhatIsMade", ["ec2:CreateTags"], {"StringEquals": {"ec2:CreateAction": TAGGING}}
            ),
            allowed(
                "ChangeAndEndWhatCarriesTheTag",
                ["ec2:CreateTags", *(f"ec2:{name}" for name in ENDED)],
                {"Null": {"aws:ResourceTag/atomo:cluster": "false"}},
            ),
            allowed(
                "SpotOnceInTheLifeOfAnAccount",
                ["iam:CreateServiceLinkedRole"],
                {"StringEquals": {"iam:AWSServiceName": ROLES}},
            ),
            allowed(NOT_NEEDED, ADVISORY),
        ],
    }


def allowed(
    name: str, actions: Sequence[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A statement that allows actions."""
    said: dict[str, Any] = {
        "Sid": name,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": "*",
    }
    return said if condition is None else {**said, "Condition": condition}
