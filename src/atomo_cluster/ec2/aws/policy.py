"""The least policy of the user: what some commands call with the settings of a cluster.

A statement is part of it if one of the commands needs it and the settings use it. What is made must
carry the cluster's tags; what is changed or ended must carry them already.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from atomo_cluster.ec2.aws.policy_scope import Conditions, PolicyScope, Statement, allow
from atomo_cluster.ec2.aws.session_manager import CORE
from atomo_cluster.ec2.aws.tags import HOURS, IMAGE, ClusterTags
from atomo_cluster.ec2.settings.terms import BAKED, LATEST

__all__ = [
    "AWS_ENDS",
    "COMMANDS",
    "EVERYWHERE",
    "OPTIONAL",
    "USES",
    "VERSION",
    "launch_statements",
    "pass_end_role",
    "policy",
    "results_statements",
    "schedule_group",
    "used_commands",
]

VERSION: Final = "2012-10-17"
EC2: Final = "ec2.amazonaws.com"
SCHEDULER: Final = "scheduler.amazonaws.com"
SPOT_SERVICE: Final = "spot.amazonaws.com"
# Kinds that commands describe.
HOSTS: Final = ("Instances", "InstanceTypes")
PLAN: Final = (*HOSTS, "Images", "InstanceTypeOfferings", "SpotPriceHistory", "Subnets")
CHECKS: Final = (*PLAN, "KeyPairs", "NetworkInterfaces", "SecurityGroups")
SEARCH: Final = (
    "Fleets", "Instances", "KeyPairs", "LaunchTemplates", "NetworkInterfaces", "PlacementGroups",
    "SecurityGroups", "SpotInstanceRequests", "Tags", "Volumes",
)  # fmt: skip
LAUNCHES: Final = (*CHECKS, *SEARCH)
# Statements that commands need; the settings decide which of them are used.
ON_HOSTS: Final = ("ReadConsoles", "SessionsOnHosts", "SessionsForSsh")
END_LOOKS: Final = ("LookAtEnds", "LookAtEndRole")
AWS_ENDS: Final = (*END_LOOKS, "ScheduleEnds", "MakeEndRole", "KeepEndRole", "PassEndRole")
ENDING: Final = (
    "End", "LookAtRoles", "KeepRoles", "LookAtEnds", "ScheduleEnds", "KeepEndRole",
)  # fmt: skip
LAUNCHING: Final = (
    "LaunchHosts", "LaunchVolumes", "LaunchFrom", "LaunchInto", "Make", "MakeInNetwork",
    "OpenGroup", "TagNew", "SpotRole", "MakeRoles", "AttachSessionManager", "PassRoles",
    "Prices", "Quotas", "ImageNames", "SharedFolders", *AWS_ENDS, *ENDING,
)  # fmt: skip
Needs = tuple[tuple[str, ...], tuple[str, ...]]  # kinds to describe, names of statements
ONLY_HOSTS: Final[Needs] = (HOSTS, ON_HOSTS)
COMMANDS: Final[Mapping[str, Needs]] = {
    "init": ((), ()),
    "iam": ((), ("Simulate",)),
    "cheapest": (("InstanceTypes", "SpotPriceHistory"), ("Prices",)),
    "plan": (PLAN, ("Prices", "ImageNames", *END_LOOKS)),
    "validate": (CHECKS, ("Quotas", "ImageNames", "SharedFolders")),
    "launch": (LAUNCHES, LAUNCHING),
    "get_hosts": (("Instances",), ()),
    "status": (
        (*SEARCH, "InstanceTypes", "Images"),
        ("LookAtRoles", "ListResults", "ReadResults", "LookAtEnds"),
    ),
    "cost": (("Addresses", "Instances", "Snapshots", "Volumes"), ("Prices",)),
    "extend": ((*HOSTS, "Volumes"), (*ON_HOSTS, "MoveFuses", "Prices", *AWS_ENDS)),
    # `resize` to fewer asks the master about its job.
    "resize": (LAUNCHES, (*LAUNCHING, *ON_HOSTS)),
    "bake": ((*HOSTS, "Images"), (*ON_HOSTS, "BakeHosts", "BakeImages", "TagImages", "Prices")),
    "delete_images": (("Images", "Snapshots"), ("DeleteImages",)),
    "stop_hosts": (
        (*HOSTS, "Volumes"),
        (*ON_HOSTS, "Sleep", "MoveFuses", "End", "Prices", *AWS_ENDS),
    ),
    "start_hosts": ((*HOSTS, "Volumes"), ("Sleep", "Prices", *AWS_ENDS)),
    "list_running_instances": (("Instances",), ()),
    "list_idle_instances": ONLY_HOSTS,
    "run_command": ONLY_HOSTS,
    "kill_python": ONLY_HOSTS,
    "kill_all_python": ONLY_HOSTS,
    "setup_nfs": (HOSTS, (*ON_HOSTS, "SharedFolders")),
    "bootstrap": ((*HOSTS, "Subnets"), (*ON_HOSTS, "SharedFolders")),
    "train": ((*HOSTS, "Subnets", "Volumes"), (*ON_HOSTS, "Prices")),
    "jobs": ONLY_HOSTS,
    "logs": ONLY_HOSTS,
    "attach": ONLY_HOSTS,
    "stop": ONLY_HOSTS,
    "fetch": (HOSTS, (*ON_HOSTS, "ListResults", "ReadResults")),
    "upload": ONLY_HOSTS,
    "supervise": ((), ()),  # on the master, whose role has a policy of its own
    "ssh": ONLY_HOSTS,
    "clean_launch_and_run": ((*LAUNCHES, "Addresses"), (*LAUNCHING, *ON_HOSTS)),
    "shutdown": ((*SEARCH, "Addresses", "Images"), ENDING),
}
# Uses that take rights beyond the settings' regions: printed for --for alone.
EVERYWHERE: Final = "status --all-regions"
USES: Final[Mapping[str, Needs]] = {
    **COMMANDS, EVERYWHERE: (COMMANDS["status"][0], (*COMMANDS["status"][1], "LookEverywhere"))
}  # fmt: skip
# Without these a command says less, or that it does not know, and goes on.
OPTIONAL: Final = ("Prices", "Quotas", "ImageNames", "SharedFolders", "Simulate")
IMAGING: Final = ("bake", "delete_images")


def used_commands(scope: PolicyScope) -> list[str]:
    """Lists the commands for these settings: those of images only if the cluster has such."""
    baked = scope.cluster.image_id == BAKED
    return [name for name in COMMANDS if baked or name not in IMAGING]


def policy(scope: PolicyScope, commands: Iterable[str]) -> dict[str, Any]:
    """Returns the policy in the format of IAM, for some commands."""
    wanted = tuple(commands)
    unused = set() if scope.spot else {"SpotPriceHistory"}
    kinds = {kind for name in wanted for kind in USES[name][0]
             if name == "cheapest" or kind not in unused}  # fmt: skip
    names = {name for command in wanted for name in USES[command][1]}
    built = [describe(scope, kinds), *statements_of(scope)]
    used = [
        statement
        for statement in built
        if statement["Sid"] in {*names, "Describe"} and statement["Action"]
    ]
    return {"Version": VERSION, "Statement": used}


def describe(scope: PolicyScope, kinds: Iterable[str]) -> Statement:
    """Returns the statement on descriptions, which EC2 does not limit to resources."""
    return scope.regional("Describe", [f"ec2:Describe{kind}" for kind in sorted(kinds)])


def statements_of(scope: PolicyScope) -> list[Statement]:
    """Lists all statements that the settings use."""
    return [
        *launch_statements(scope, (scope.cluster.master_type, *scope.cluster.worker_types)),
        *network_statements(scope),
        *host_statements(scope),
        *role_statements(scope),
        *end_statements(scope),
        *image_statements(scope),
        *results_statements(scope, ("s3:GetObject",)),
        *advisory_statements(scope),
    ]


def launch_statements(
    scope: PolicyScope, types: Iterable[str], tags: Mapping[str, str] | None = None
) -> list[Statement]:
    """Lists the statements that allow a launch: of these types, with the cluster's tags.

    Args:
        scope: the cluster.
        types: instance types of hosts.
        tags: further tags that a host must get.
    """
    orders = ["ec2:RunInstances", *(["ec2:CreateFleet"] if scope.spot else [])]
    fleets = ["spot-instances-request", "fleet"] if scope.spot else []
    sizes = {"ec2:InstanceType": list(dict.fromkeys(types))}
    hosts = {**scope.requested, **(tags or {}), **sizes}
    return [
        scope.regional("LaunchHosts", orders, scope.ec2("instance"), hosts),
        scope.regional("LaunchVolumes", orders, scope.ec2("volume", *fleets), scope.requested),
        scope.regional("LaunchFrom", orders, sources(scope)),
        scope.regional("LaunchInto", orders, scope.ec2(*shared_kinds(scope)), scope.tagged),
        *([spot_role(scope)] if scope.spot else []),
    ]


def sources(scope: PolicyScope) -> list[str]:
    """Lists the ARNs of what hosts are launched from, which carries no tags of the cluster."""
    cluster = scope.cluster
    image = "*" if cluster.image_id in (LATEST, BAKED) else cluster.image_id
    own_key = [scope.arn("ec2", f"key-pair/{cluster.key_name}")] if cluster.key_name else []
    return [
        scope.arn("ec2", f"image/{image}", ""),
        *scope.ec2("snapshot", "network-interface"),
        scope.arn("ec2", f"subnet/{cluster.subnet_id or '*'}"),
        *own_key,
    ]


def shared_kinds(scope: PolicyScope) -> list[str]:
    """Lists the kinds of resources that are made for a cluster and that its hosts share."""
    cluster = scope.cluster
    used = {
        "security-group": True,
        "key-pair": not cluster.key_name,
        "placement-group": cluster.placement_group,
        "launch-template": scope.spot,
    }
    return [kind for kind, made in used.items() if made]


def spot_role(scope: PolicyScope) -> Statement:
    """Returns the statement on the role that EC2 makes at the first spot instance of an account."""
    arn = scope.arn("iam", f"role/aws-service-role/{SPOT_SERVICE}/*")
    service = {"iam:AWSServiceName": SPOT_SERVICE}
    return allow("SpotRole", ["iam:CreateServiceLinkedRole"], arn, service)


def network_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on security group, key pair, placement group and launch template."""
    kinds = shared_kinds(scope)
    made = {
        "security-group": "CreateSecurityGroup",
        "key-pair": "ImportKeyPair",
        "placement-group": "CreatePlacementGroup",
        "launch-template": "CreateLaunchTemplate",
    }
    rules = ["AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"]
    rules += ["AuthorizeSecurityGroupEgress"] if scope.cluster.efa else []
    calls = [
        "RunInstances",
        *(["CreateFleet"] if scope.spot else []),
        *map(made.__getitem__, kinds),
    ]
    created = {**scope.requested, "ec2:CreateAction": calls}
    return [
        scope.regional("Make", [f"ec2:{made[kind]}" for kind in kinds], scope.ec2(*kinds),
                       scope.requested),
        scope.regional("MakeInNetwork", ["ec2:CreateSecurityGroup"], scope.ec2("vpc")),
        scope.regional("OpenGroup", [f"ec2:{rule}" for rule in rules], scope.arn("ec2", "*/*"),
                       scope.tagged),
        scope.regional("TagNew", ["ec2:CreateTags"], scope.arn("ec2", "*/*"), created),
    ]  # fmt: skip


def host_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on hosts that exist: consoles, sessions, fuses, stops and ends.

    Actions that have one kind of resource are bound to it by themselves, and merge in `compact`.
    """
    hosts, any_kind = scope.ec2("instance"), scope.arn("ec2", "*/*")
    ended = ["TerminateInstances", "CancelSpotInstanceRequests", "DeleteVolume",
             "DeleteNetworkInterface", "DeleteSecurityGroup", "DeleteKeyPair",
             "DeletePlacementGroup"]  # fmt: skip
    ended += ["DeleteFleets", "DeleteLaunchTemplate"] if scope.spot else []
    fuse_alone: dict[str, Conditions] = {
        "ForAllValues:StringEquals": {"aws:TagKeys": [HOURS]},
        "Null": {"aws:TagKeys": "false"},
    }
    return [
        scope.regional("ReadConsoles", ["ec2:GetConsoleOutput"], any_kind, scope.tagged),
        *(session_statements(scope) if scope.cluster.managed else []),
        scope.regional("MoveFuses", ["ec2:CreateTags"], hosts, scope.tagged, **fuse_alone),
        scope.regional("Sleep", ["ec2:StopInstances", "ec2:StartInstances"], any_kind,
                       scope.tagged),
        scope.regional("End", [f"ec2:{call}" for call in ended], any_kind, scope.tagged),
    ]  # fmt: skip


def session_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on sessions of Session Manager: to the cluster's hosts, for ssh."""
    start, documents = ["ssm:StartSession"], {"ssm:SessionDocumentAccessCheck": "true"}
    ssh = scope.arn("ssm", "document/AWS-StartSSHSession", "")
    return [
        scope.regional("SessionsOnHosts", start, scope.ec2("instance"),
                       scope.tags("ssm:resourceTag"), BoolIfExists=documents),
        scope.regional("SessionsForSsh", start, ssh),
    ]  # fmt: skip


def role_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on roles and instance profiles; none if hosts have none."""
    if not scope.cluster.makes_roles:
        return []
    bound = {"iam:PermissionsBoundary": scope.boundary} if scope.boundary else {}
    both = ("role", "instance-profile")
    names, earlier = scope.role_names, scope.earlier_role_names
    roles = scope.iam(names, "role")
    seen = scope.iam(dict.fromkeys(f"{name}*" for name in (*scope.master_roles, *earlier)), *both)
    given = ["iam:PutRolePolicy"] if scope.cluster.needs_profile else []
    session = {**bound, "iam:PolicyARN": CORE}
    kept = ["TagRole", "DeleteRole", "DeleteRolePolicy", "DetachRolePolicy",
            "ListAttachedRolePolicies", "CreateInstanceProfile", "TagInstanceProfile",
            "AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile",
            "DeleteInstanceProfile"]  # fmt: skip
    return [
        allow("LookAtRoles", ["iam:GetRole", "iam:GetInstanceProfile"], seen),
        allow("KeepRoles", [f"iam:{call}" for call in kept], scope.iam((*names, *earlier), *both)),
        allow("MakeRoles", ["iam:CreateRole", *given], roles, bound),
        *([allow("AttachSessionManager", ["iam:AttachRolePolicy"], roles, session)]
          if scope.cluster.managed else []),
        allow("PassRoles", ["iam:PassRole"], roles, {"iam:PassedToService": EC2}),
    ]  # fmt: skip


def end_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on ends of hosts by AWS: schedules of the cluster and their role."""
    if not scope.cluster.aws_ends:
        return []
    group = schedule_group(scope)
    arns = [scope.arn("scheduler", f"schedule/{group}/*"),
            scope.arn("scheduler", f"schedule-group/{group}")]  # fmt: skip
    looks = ["scheduler:GetSchedule", "scheduler:GetScheduleGroup"]
    calls = ["CreateSchedule", "UpdateSchedule", "DeleteSchedule", "CreateScheduleGroup",
             "DeleteScheduleGroup", "TagResource"]  # fmt: skip
    roles = scope.iam(scope.end_roles, "role")
    return [
        scope.regional("LookAtEnds", looks, arns),
        scope.regional("ScheduleEnds", [f"scheduler:{call}" for call in calls], arns),
        allow("LookAtEndRole", ["iam:GetRolePolicy"], roles),
        pass_end_role(scope),
        *end_role_statements(scope, roles),
    ]


def schedule_group(scope: PolicyScope) -> str:
    """Returns the name of the group of the cluster's schedules; a wildcard for an unknown owner."""
    label = ClusterTags(scope.cluster.name, scope.owner).label
    return label if scope.owner else f"atomo-{scope.cluster.name}-*"


def pass_end_role(scope: PolicyScope) -> Statement:
    """Returns the statement that lets schedules use the end roles."""
    roles = scope.iam(scope.end_roles, "role")
    return allow("PassEndRole", ["iam:PassRole"], roles, {"iam:PassedToService": SCHEDULER})


def end_role_statements(scope: PolicyScope, roles: Sequence[str]) -> list[Statement]:
    """Lists the statements that make the end roles; none: an administrator makes them once."""
    if not scope.cluster.makes_roles:
        return []
    bound = {"iam:PermissionsBoundary": scope.boundary} if scope.boundary else {}
    kept = ["iam:TagRole", "iam:DeleteRole", "iam:DeleteRolePolicy"]
    return [
        allow("MakeEndRole", ["iam:CreateRole", "iam:PutRolePolicy"], roles, bound),
        allow("KeepEndRole", kept, roles),
    ]


def image_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on images: made of the cluster's hosts, deleted by their own tag."""
    images, create = scope.ec2("image", "snapshot"), ["ec2:CreateImage"]
    requested = scope.tags("aws:RequestTag", IMAGE)
    delete = ["ec2:DeregisterImage", "ec2:DeleteSnapshot"]
    tagged = scope.tags("aws:ResourceTag", IMAGE)
    return [
        scope.regional("BakeHosts", create, scope.ec2("instance"), scope.tagged),
        scope.regional("BakeImages", create, images, requested),
        scope.regional("TagImages", ["ec2:CreateTags"], images,
                       {**requested, "ec2:CreateAction": "CreateImage"}),
        scope.regional("DeleteImages", delete, images, tagged),
    ]  # fmt: skip


def results_statements(scope: PolicyScope, actions: Iterable[str]) -> list[Statement]:
    """Lists the statements on the bucket of the results, below their prefix alone."""
    if not scope.cluster.results:
        return []
    bucket, _, prefix = scope.cluster.results.removeprefix("s3://").partition("/")
    folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    arn = scope.arn("s3", bucket, "")
    below = {"StringLike": {"s3:prefix": f"{folder}*"}} if folder else {}
    return [
        allow("ListResults", ["s3:ListBucket"], arn, **below),
        allow("ReadResults", list(actions), f"{arn}/{folder}*"),
    ]


def advisory_statements(scope: PolicyScope) -> list[Statement]:
    """Lists the statements on what tells more: prices, quotas, names of images, file systems."""
    cluster = scope.cluster
    latest = scope.arn("ssm", "parameter/aws/service/*", "")
    simulate = ["iam:GetRole", "iam:SimulatePrincipalPolicy"]
    named: Callable[[str], bool] = cluster.storage.startswith
    efs = cluster.outlives and not named("fsx:")
    folders = ["elasticfilesystem:DescribeFileSystems"] if efs and not cluster.storage else []
    folders += [f"elasticfilesystem:Describe{what}" for what in
                ("MountTargets", "MountTargetSecurityGroups")] if efs else []  # fmt: skip
    folders += ["fsx:DescribeFileSystems"] if named("fsx:") else []
    return [
        allow("LookEverywhere", ["ec2:DescribeInstances", "ec2:DescribeRegions"]),
        allow("Prices", ["pricing:GetProducts"]),
        scope.regional("Quotas", ["servicequotas:ListServiceQuotas"]),
        *([scope.regional("ImageNames", ["ssm:GetParameters"], latest)]
          if cluster.image_id == LATEST else []),
        *([scope.regional("SharedFolders", folders)] if folders else []),
        allow("Simulate", simulate, scope.principals),
    ]  # fmt: skip
