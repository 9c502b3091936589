"""The requests that IAM decides on when a call is made: actions, resources and condition keys.

The table follows AWS's Service Authorization Reference. A key that AWS does not know for a resource
is left out: a condition on it then fails, as it would there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.ec2.support.cloud import Cloud
from cluster.ec2.support.iam_policy import Request

from atomo_cluster.ec2.aws.tags import as_dict

ACCOUNT = "123456789012"  # moto's
EC2_SERVICE, SPOT_SERVICE = "ec2.amazonaws.com", "spot.amazonaws.com"
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A call to AWS."""

    service: str
    operation: str
    words: Parameters
    region: str


@dataclass
class Account:
    """Facts about resources, as AWS knows them when it decides."""

    cloud: Cloud
    templates: dict[str, Parameters] = field(default_factory=dict)  # launch templates, by name
    spot_role: bool = False  # made at the first spot instance of an account

    def tags(self, call: Call, kind: str, id: str) -> dict[str, str]:
        """Returns the tags of a resource; none if it does not exist."""
        client = self.cloud.moto.region(call.region)
        if kind == "placement-group":
            return self.cloud.placement_groups.get(id, {})
        if kind == "key-pair":
            listed = client.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [id]}])
            return next(map(as_dict, listed["KeyPairs"]), {})
        if kind == "launch-template" and not id.startswith("lt-"):
            filters = [{"Name": "launch-template-name", "Values": [id]}]
            listed = client.describe_launch_templates(Filters=filters)
            return next(map(as_dict, listed["LaunchTemplates"]), {})
        if kind == "fleet":
            fleets = client.describe_fleets()["Fleets"]
            return next((as_dict(one) for one in fleets if one["FleetId"] == id), {})
        filters = [{"Name": "resource-id", "Values": [id]}]
        return {one["Key"]: one["Value"] for one in client.describe_tags(Filters=filters)["Tags"]}

    def boundary(self, role: str) -> dict[str, list[str]]:
        """Returns the condition key of a role's boundary; empty if it has none."""
        iam = self.cloud.moto.client("iam")
        roles = [one for one in iam.list_roles()["Roles"] if one["RoleName"] == role]
        if not roles:
            return {}
        bound = iam.get_role(RoleName=role)["Role"].get("PermissionsBoundary")
        return {"iam:PermissionsBoundary": [bound["PermissionsBoundaryArn"]]} if bound else {}

    def role_in(self, profile: str) -> str:
        """Returns the role of an instance profile; the names are equal where it is not there."""
        iam = self.cloud.moto.client("iam")
        for one in iam.list_instance_profiles()["InstanceProfiles"]:
            if one["InstanceProfileName"] == profile and one["Roles"]:
                return str(one["Roles"][0]["RoleName"])
        return profile


def arn(call: Call, kind: str, id: str = "*") -> str:
    """Returns the ARN of a resource of EC2. Images and snapshots have no account in it."""
    account = "" if kind in ("image", "snapshot") else ACCOUNT
    return f"arn:aws:ec2:{call.region}:{account}:{kind}/{id}"


def requests_of(call: Call, account: Account) -> Iterator[Request]:
    """Yields the requests of a call, which must all be allowed."""
    region = "us-east-1" if call.service in ("iam", "pricing") else call.region
    for one in raw_requests(call, account):
        yield Request(one.action, one.resource, {**one.context, "aws:RequestedRegion": [region]})


def raw_requests(call: Call, account: Account) -> Iterator[Request]:
    if call.service == "sts" and call.operation == "GetCallerIdentity":
        return  # which takes no right
    if call.service == "ec2":
        yield from of_ec2(call, account)
    elif call.service == "iam":
        yield from of_iam(call, account)
    else:
        yield from of_others(call)


def of_ec2(call: Call, account: Account) -> Iterator[Request]:
    action = f"ec2:{call.operation}"
    if call.operation.startswith("Describe"):
        yield Request(action)
    elif call.operation in ON_EXISTING:
        kind, parameter = ON_EXISTING[call.operation]
        ids = call.words.get(parameter) or call.words["LaunchTemplateId"]
        for id in [ids] if isinstance(ids, str) else ids:
            yield existing(call, account, action, kind, id)
    elif call.operation == "CreateTags":
        tags = {one["Key"]: one["Value"] for one in call.words["Tags"]}
        for id in call.words["Resources"]:
            one = existing(call, account, action, KINDS[id.partition("-")[0]], id)
            yield Request(one.action, one.resource, {**one.context, **tag_keys(tags)})
    else:
        yield from MADE[call.operation](call, account)


def existing(call: Call, account: Account, action: str, kind: str, id: str) -> Request:
    """Returns a request on a resource that exists: the keys are its tags."""
    tags = account.tags(call, kind, id)
    context = {f"aws:ResourceTag/{key}": [value] for key, value in tags.items()}
    return Request(action, arn(call, kind, id), context)


def tag_keys(tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the keys of the tags in a request."""
    keys = {"aws:TagKeys": list(tags)} if tags else {}
    return keys | {f"aws:RequestTag/{key}": [value] for key, value in tags.items()}


def specified(words: Parameters) -> dict[str, dict[str, str]]:
    """Returns the tags of TagSpecifications, by kind of resource."""
    return {one["ResourceType"]: as_dict(one) for one in words.get("TagSpecifications", [])}


def creation(call: Call, kind: str, tags: Mapping[str, str], action: str, more: Any = ()) -> Any:
    """Yields the requests on a new resource: its making, and its tags."""
    made = arn(call, kind)
    yield Request(f"ec2:{action}", made, {**tag_keys(tags), **dict(more)})
    if tags:
        yield Request("ec2:CreateTags", made, {**tag_keys(tags), "ec2:CreateAction": [action]})


def single(kind: str, *beside: str) -> Callable[[Call, Account], Iterator[Request]]:
    """Returns the requests of a call that makes one resource, in others that exist."""

    def requests(call: Call, account: Account) -> Iterator[Request]:
        yield from creation(call, kind, specified(call.words).get(kind, {}), call.operation)
        for other in beside:
            yield existing(call, account, f"ec2:{call.operation}", other, call.words["VpcId"])
        if call.operation == "CreateLaunchTemplate":
            account.templates[call.words["LaunchTemplateName"]] = call.words["LaunchTemplateData"]

    return requests


def run_instances(call: Call, account: Account) -> Iterator[Request]:
    if call.words.get("InstanceMarketOptions"):
        yield from first_spot(account)
    types = [call.words["InstanceType"]]
    yield from hosts(call, account, "RunInstances", call.words, types)


def create_fleet(call: Call, account: Account) -> Iterator[Request]:
    """An instant fleet launches at once: the user needs the rights for the hosts as well."""
    yield from first_spot(account)
    yield from creation(call, "fleet", specified(call.words).get("fleet", {}), "CreateFleet")
    for config in call.words["LaunchTemplateConfigs"]:
        name = config["LaunchTemplateSpecification"]["LaunchTemplateName"]
        if name not in account.templates:
            continue  # a dry run: EC2 refuses the name
        types = [one["InstanceType"] for one in config["Overrides"]]
        for action in ("CreateFleet", "RunInstances"):
            yield existing(call, account, f"ec2:{action}", "launch-template", name)
            yield from hosts(call, account, action, account.templates[name], types)


def first_spot(account: Account) -> Iterator[Request]:
    if not account.spot_role:
        name = f"role/aws-service-role/{SPOT_SERVICE}/AWSServiceRoleForEC2Spot"
        service = {"iam:AWSServiceName": [SPOT_SERVICE]}
        yield Request("iam:CreateServiceLinkedRole", iam_arn(name), service)


def hosts(
    call: Call, account: Account, action: str, words: Parameters, types: list[str]
) -> Iterator[Request]:
    """Yields the requests on hosts and on all that they are made of."""
    tags = specified(words)
    for type in types:
        keys = {"ec2:InstanceType": [type]}
        yield from creation(call, "instance", tags.get("instance", {}), action, keys)
    for disk in words.get("BlockDeviceMappings", []):
        about = disk["Ebs"]
        keys = {"ec2:VolumeSize": [str(about["VolumeSize"])],
                "ec2:Encrypted": [str(about.get("Encrypted", False)).lower()]}  # fmt: skip
        yield from creation(call, "volume", tags.get("volume", {}), action, keys)
    if "spot-instances-request" in tags:
        kind = "spot-instances-request"
        yield from creation(call, kind, tags[kind], action)
    yield from beside(call, account, f"ec2:{action}", words)


def beside(call: Call, account: Account, action: str, words: Parameters) -> Iterator[Request]:
    """Yields the requests on resources that hosts use: image, network, key, group, profile."""
    yield existing(call, account, action, "image", words["ImageId"])
    yield Request(action, arn(call, "network-interface"))
    yield existing(call, account, action, "subnet", words.get("SubnetId", "default"))
    groups = [*words.get("SecurityGroupIds", [])]
    groups += [id for one in words.get("NetworkInterfaces", []) for id in one["Groups"]]
    for id in groups:
        yield existing(call, account, action, "security-group", id)
    if name := words.get("KeyName"):
        yield existing(call, account, action, "key-pair", name)
    if name := words.get("Placement", {}).get("GroupName"):
        yield existing(call, account, action, "placement-group", name)
    if profile := words.get("IamInstanceProfile", {}).get("Name"):
        yield passing(account.role_in(profile))


def create_image(call: Call, account: Account) -> Iterator[Request]:
    yield existing(call, account, "ec2:CreateImage", "instance", call.words["InstanceId"])
    for kind, tags in specified(call.words).items():
        yield from creation(call, kind, tags, "CreateImage")


MADE: dict[str, Callable[[Call, Account], Iterator[Request]]] = {
    "RunInstances": run_instances,
    "CreateFleet": create_fleet,
    "CreateImage": create_image,
    "CreateLaunchTemplate": single("launch-template"),
    "CreateSecurityGroup": single("security-group", "vpc"),
    "ImportKeyPair": single("key-pair"),
    "CreatePlacementGroup": single("placement-group"),
}
ON_EXISTING = {
    "GetConsoleOutput": ("instance", "InstanceId"),
    "TerminateInstances": ("instance", "InstanceIds"),
    "StopInstances": ("instance", "InstanceIds"),
    "StartInstances": ("instance", "InstanceIds"),
    "CancelSpotInstanceRequests": ("spot-instances-request", "SpotInstanceRequestIds"),
    "DeleteFleets": ("fleet", "FleetIds"),
    "DeleteVolume": ("volume", "VolumeId"),
    "DeleteNetworkInterface": ("network-interface", "NetworkInterfaceId"),
    "DeleteLaunchTemplate": ("launch-template", "LaunchTemplateName"),
    "DeletePlacementGroup": ("placement-group", "GroupName"),
    "DeleteKeyPair": ("key-pair", "KeyName"),
    "DeleteSecurityGroup": ("security-group", "GroupId"),
    "AuthorizeSecurityGroupIngress": ("security-group", "GroupId"),
    "AuthorizeSecurityGroupEgress": ("security-group", "GroupId"),
    "RevokeSecurityGroupIngress": ("security-group", "GroupId"),
    "DeregisterImage": ("image", "ImageId"),
    "DeleteSnapshot": ("snapshot", "SnapshotId"),
}
KINDS = {"i": "instance", "vol": "volume", "sg": "security-group", "ami": "image",
         "snap": "snapshot", "lt": "launch-template"}  # fmt: skip


def iam_arn(name: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{name}"


def passing(role: str) -> Request:
    """Returns the request to give a role to EC2."""
    context = {"iam:PassedToService": [EC2_SERVICE]}
    return Request("iam:PassRole", iam_arn(f"role/{role}"), context)


def of_iam(call: Call, account: Account) -> Iterator[Request]:
    words, action = call.words, f"iam:{call.operation}"
    if call.operation == "SimulatePrincipalPolicy":
        yield Request(action, words["PolicySourceArn"].replace(":sts:", ":iam:"))
        return
    kind = "instance-profile" if "InstanceProfileName" in words else "role"
    name = words["InstanceProfileName" if kind == "instance-profile" else "RoleName"]
    target, context = iam_arn(f"{kind}/{name}"), {}
    if call.operation == "CreateRole" and "PermissionsBoundary" in words:
        context = {"iam:PermissionsBoundary": [words["PermissionsBoundary"]]}
    elif call.operation in BOUNDED:
        context = account.boundary(name)
    if "PolicyArn" in words:
        context = {**context, "iam:PolicyARN": [words["PolicyArn"]]}
    tags = {one["Key"]: one["Value"] for one in words.get("Tags", [])}
    yield Request(action, target, {**context, **tag_keys(tags)})
    if tags:
        tagging = "TagRole" if kind == "role" else "TagInstanceProfile"
        yield Request(f"iam:{tagging}", target, tag_keys(tags))
    if call.operation == "AddRoleToInstanceProfile":
        yield passing(words["RoleName"])


BOUNDED = {"PutRolePolicy", "AttachRolePolicy", "DetachRolePolicy", "DeleteRolePolicy"}


def of_others(call: Call) -> Iterator[Request]:
    words = call.words
    if call.service == "s3":
        bucket = f"arn:aws:s3:::{words['Bucket']}"
        if call.operation == "ListObjectsV2":
            yield Request("s3:ListBucket", bucket, {"s3:prefix": [words.get("Prefix", "")]})
        else:
            action = S3_ACTIONS.get(call.operation, call.operation)
            yield Request(f"s3:{action}", f"{bucket}/{words['Key']}")
    elif call.service == "scheduler":
        yield from of_scheduler(call)
    elif call.operation == "GetParameters":
        for name in words["Names"]:
            yield Request("ssm:GetParameters", f"arn:aws:ssm:{call.region}::parameter{name}")
    else:
        yield Request(f"{PREFIXES.get(call.service, call.service)}:{call.operation}")


def of_scheduler(call: Call) -> Iterator[Request]:
    words, action = call.words, f"scheduler:{call.operation}"
    head = f"arn:aws:scheduler:{call.region}:{ACCOUNT}"
    if call.operation.endswith("Group"):
        group = words["Name"]
        yield Request(action, f"{head}:schedule-group/{group}")
        if call.operation == "CreateScheduleGroup" and words.get("Tags"):
            yield Request("scheduler:TagResource", f"{head}:schedule-group/{group}")
        if call.operation == "DeleteScheduleGroup":
            yield Request("scheduler:DeleteSchedule", f"{head}:schedule/{group}/*")
        return
    yield Request(action, f"{head}:schedule/{words['GroupName']}/{words['Name']}")
    if "Target" in words:
        context = {"iam:PassedToService": ["scheduler.amazonaws.com"]}
        yield Request("iam:PassRole", words["Target"]["RoleArn"], context)


S3_ACTIONS = {"CreateMultipartUpload": "PutObject", "UploadPart": "PutObject",
              "CompleteMultipartUpload": "PutObject", "HeadObject": "GetObject"}  # fmt: skip
PREFIXES = {"efs": "elasticfilesystem", "service-quotas": "servicequotas"}
