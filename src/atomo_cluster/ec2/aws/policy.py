"""The IAM policies of the user and of the master, limited to the calls of the commands."""

from collections.abc import Sequence
from typing import Any, Final

from atomo_cluster.ec2.aws.tags import CLUSTER, IMAGE
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = [
    "FETCHING",
    "NOT_NEEDED",
    "ONCE_BAKED",
    "ONCE_SUPERVISED",
    "SESSIONS",
    "master_policy",
    "policy",
]

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
STOPPED: Final = ("StopInstances", "StartInstances")
TAGGING: Final = (
    "RunInstances", "CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup", "ImportKeyPair",
    "CreatePlacementGroup", "CreateImage",
)  # fmt: skip
BAKED: Final = ("CreateImage", "DescribeSnapshots")
UNBAKED: Final = ("DeregisterImage", "DeleteSnapshot")
ROLES: Final = ("ec2fleet.amazonaws.com", "spot.amazonaws.com")
SESSIONS: Final = "ConnectThroughSessionManager"
FETCHING: Final = "FetchWhereResultsAreOnS3"
ONCE_SUPERVISED: Final = "ProfileOfTheMasterWhereItIsSupervised"
BAKING: Final = "ImagesWhereTheyAreBaked"
UNBAKING: Final = "DeleteImagesThatCarryTheirTag"
ONCE_BAKED: Final = (BAKING, UNBAKING)
NOT_NEEDED: Final = "ToBeToldMoreAndNotNeeded"
PROFILE: Final = (
    "GetRole", "CreateRole", "TagRole", "DeleteRole", "PassRole", "PutRolePolicy",
    "DeleteRolePolicy", "GetInstanceProfile", "CreateInstanceProfile", "TagInstanceProfile",
    "AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile", "DeleteInstanceProfile",
    "AttachRolePolicy", "DetachRolePolicy", "ListAttachedRolePolicies",
)  # fmt: skip
BY_THE_MASTER: Final = ("RunInstances", "CreateFleet", "CreateLaunchTemplate")
ADVISORY: Final = (
    "pricing:GetProducts",
    "servicequotas:ListServiceQuotas",
    "ssm:GetParameters",
    "elasticfilesystem:DescribeFileSystems",
    "elasticfilesystem:DescribeMountTargets",
    "elasticfilesystem:DescribeMountTargetSecurityGroups",
    "fsx:DescribeFileSystems",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
)


def policy() -> dict[str, Any]:
    """Returns the user's policy in the format of IAM."""
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
                ["ec2:CreateTags", *(f"ec2:{name}" for name in (*ENDED, *STOPPED))],
                {"Null": {"aws:ResourceTag/atomo:cluster": "false"}},
            ),
            allowed(
                "SpotOnceInTheLifeOfAnAccount",
                ["iam:CreateServiceLinkedRole"],
                {"StringEquals": {"iam:AWSServiceName": ROLES}},
            ),
            allowed(BAKING, [f"ec2:{name}" for name in BAKED]),
            allowed(
                UNBAKING,
                [f"ec2:{name}" for name in UNBAKED],
                {"Null": {f"aws:ResourceTag/{IMAGE}": "false"}},
            ),
            allowed(NOT_NEEDED, ADVISORY),
            allowed(SESSIONS, ["ssm:StartSession"]),
            allowed(FETCHING, ["s3:ListBucket", "s3:GetObject"]),
            allowed(
                ONCE_SUPERVISED,
                [f"iam:{name}" for name in PROFILE],
                resource=[
                    f"arn:aws:iam::*:{kind}/atomo-*" for kind in ("role", "instance-profile")
                ],
            ),
        ],
    }


FSX: Final = ("fsx:DescribeFileSystems",)  # how new hosts mount it


def master_policy(cluster: Cluster) -> dict[str, Any]:
    """Returns the policy of the master: replace and end hosts, store results."""
    looked = [f"ec2:Describe{name}" for name in LOOKED_AT]
    ours = {"StringEquals": {f"aws:ResourceTag/{CLUSTER}": cluster.name}}
    made = {"StringEquals": {"ec2:CreateAction": BY_THE_MASTER}}
    statements = [
        allowed("Look", ["ec2:GetConsoleOutput", *looked, *ADVISORY[:3], *FSX]),
        allowed("Replace", [f"ec2:{name}" for name in BY_THE_MASTER]),
        allowed("TagWhatIsMade", ["ec2:CreateTags"], made),
        allowed("End", [f"ec2:{name}" for name in ENDED], ours),
    ]
    if cluster.managed:  # new hosts are managed as the old ones
        role = f"arn:aws:iam::*:role/atomo-{cluster.name}-*-hosts"
        statements.append(allowed("Managed", ["iam:PassRole"], resource=[role]))
    return {"Version": "2012-10-17", "Statement": [*statements, *storage(cluster.results)]}


def storage(results: str) -> list[dict[str, Any]]:
    """Returns the statements that allow access to results, limited to their prefix."""
    if not results:
        return []
    bucket, _, prefix = results.removeprefix("s3://").partition("/")
    bucket = f"arn:aws:s3:::{bucket}"
    things = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return [
        allowed("Results", things, resource=[f"{bucket}/{prefix.strip('/')}/*".replace("//", "/")]),
        allowed("ListResults", ["s3:ListBucket"], resource=[bucket]),
    ]


def allowed(
    name: str,
    actions: Sequence[str],
    condition: dict[str, Any] | None = None,
    resource: str | Sequence[str] = "*",
) -> dict[str, Any]:
    """Returns a statement that allows actions."""
    said: dict[str, Any] = {
        "Sid": name,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": resource,
    }
    return said if condition is None else {**said, "Condition": condition}
