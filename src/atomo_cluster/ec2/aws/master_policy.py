"""The policy of the master's role, and the boundary of all roles of a cluster.

The master replaces workers: it launches hosts of the workers' types with the tags of cluster and
owner, and ends what carries both. IAM has no condition on a number of hosts: the supervisor counts.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from atomo_cluster.ec2.aws.policy import (
    VERSION,
    launch_statements,
    pass_end_role,
    results_statements,
    schedule_group,
)
from atomo_cluster.ec2.aws.policy_scope import PolicyScope, Statement, allow
from atomo_cluster.ec2.aws.tags import ROLE
from atomo_cluster.ec2.settings.terms import LATEST, WORKER

__all__ = ["boundary", "end_policy", "master_policy"]

DESCRIBED: Final = (
    "Fleets", "Images", "InstanceTypeOfferings", "InstanceTypes", "Instances", "KeyPairs",
    "LaunchTemplates", "NetworkInterfaces", "PlacementGroups", "SecurityGroups",
    "SpotInstanceRequests", "SpotPriceHistory", "Subnets", "Tags", "Volumes",
)  # fmt: skip
ROOT_GB: Final = 200  # the largest root disk of a published image, with room to grow
# The agent of Session Manager needs these; AWS's own policy has more.
AGENT: Final = (
    "ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel", "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)  # fmt: skip
STORE: Final = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload")


def master_policy(scope: PolicyScope) -> dict[str, Any]:
    """Returns the policy of the master: replace and end workers, store results."""
    described = [f"ec2:Describe{kind}" for kind in DESCRIBED]
    orders = ["RunInstances", *(["CreateFleet", "CreateLaunchTemplate"] if scope.spot else [])]
    created = {**scope.requested, "ec2:CreateAction": orders}
    statements = [
        scope.regional("Describe", described),
        scope.regional("ReadConsoles", ["ec2:GetConsoleOutput"], scope.ec2("instance"),
                       scope.tagged),
        *limited(scope),
        scope.regional("TagNew", ["ec2:CreateTags"], scope.arn("ec2", "*/*"), created),
        scope.regional("End", ended(scope), scope.arn("ec2", "*/*"), scope.tagged),
        *profile_statements(scope),
        *worker_end_statements(scope),
        *results_statements(scope, STORE),
        *advisory(scope),
    ]  # fmt: skip
    return {"Version": VERSION, "Statement": statements}


def limited(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on launches: of workers, with encrypted disks of limited size."""
    types = scope.cluster.worker_types
    role = {f"aws:RequestTag/{ROLE}": WORKER}
    statements = [
        statement for statement in launch_statements(scope, types, role)
        if statement["Sid"] not in ("SpotRole", "LaunchVolumes")
    ]  # fmt: skip
    orders = ["ec2:RunInstances", *(["ec2:CreateFleet"] if scope.spot else [])]
    size = {"ec2:VolumeSize": str(max(scope.cluster.volume_gb, ROOT_GB))}
    disks = scope.regional("LaunchVolumes", orders, scope.ec2("volume"), scope.requested,
                           NumericLessThanEquals=size, Bool={"ec2:Encrypted": "true"})  # fmt: skip
    return [*statements, disks, *fleet_statements(scope)]


def fleet_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on fleets, their requests and their launch templates."""
    if not scope.spot:
        return []
    kinds = scope.ec2("spot-instances-request", "fleet", "launch-template")
    orders = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
    return [scope.regional("LaunchFleets", orders, kinds, scope.requested)]


def ended(scope: PolicyScope) -> list[str]:
    """Lists the calls that end what the master launches, after a failure too."""
    fleets = ["CancelSpotInstanceRequests", "DeleteFleets", "DeleteLaunchTemplate"]
    calls = ["TerminateInstances", "DeleteVolume", "DeleteNetworkInterface",
             *(fleets if scope.spot else [])]  # fmt: skip
    return [f"ec2:{call}" for call in calls]


def profile_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on the profile of the workers, which Session Manager needs."""
    if not scope.cluster.managed:
        return []
    profile, role = (scope.iam(scope.host_roles, kind) for kind in ("instance-profile", "role"))
    service = {"iam:PassedToService": "ec2.amazonaws.com"}
    return [
        allow("LookAtProfile", ["iam:GetInstanceProfile"], profile),
        allow("PassRoles", ["iam:PassRole"], role, service),
    ]


def worker_end_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on ends of workers by AWS, with the role that the launch has made."""
    if not scope.cluster.aws_ends:
        return []
    schedules = scope.arn("scheduler", f"schedule/{schedule_group(scope)}/*")
    calls = ["scheduler:CreateSchedule", "scheduler:UpdateSchedule"]
    return [scope.regional("ScheduleEnds", calls, schedules), pass_end_role(scope)]


def advisory(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on prices, names of images and file systems to mount."""
    statements = [allow("Prices", ["pricing:GetProducts"])]
    if scope.cluster.image_id == LATEST:
        names = scope.arn("ssm", "parameter/aws/service/*", "")
        statements.append(scope.regional("ImageNames", ["ssm:GetParameters"], names))
    if scope.cluster.storage.startswith("fsx:"):
        statements.append(scope.regional("SharedFolders", ["fsx:DescribeFileSystems"]))
    return statements


def end_policy(scope: PolicyScope) -> dict[str, Any]:
    """Returns the policy of the role with which AWS ends hosts after their fuses."""
    return {"Version": VERSION, "Statement": [end_statement(scope)]}


def end_statement(scope: PolicyScope) -> Statement:
    """Returns the statement that ends the cluster's hosts and nothing else."""
    return scope.regional("EndHosts", ["ec2:TerminateInstances"], scope.ec2("instance"),
                          scope.tagged)  # fmt: skip


def boundary(scope: PolicyScope) -> dict[str, Any]:
    """Returns the boundary of the cluster's roles: the master's policy, for any owner.

    An administrator makes it once. No role that `launch` makes has more rights, whatever policies
    somebody gives to it.
    """
    anyone = replace(scope, owner="")
    needed = scope.cluster.needs_profile
    statements: Iterable[Statement] = master_policy(anyone)["Statement"] if needed else []
    agent = [allow("Agent", AGENT)] if scope.cluster.managed else []
    ends = [end_statement(anyone)] if scope.cluster.aws_ends and not needed else []
    return {"Version": VERSION, "Statement": [*statements, *ends, *agent]}
