"""Orders of instances: on-demand through RunInstances, spot through a fleet."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import HOURS, LAUNCH, MACHINE, ROLE, ClusterTags, this_machine
from atomo_cluster.ec2.hosts.user_data import user_data
from atomo_cluster.ec2.images.published import Image
from atomo_cluster.ec2.launch.capacity import NO_CAPACITY, SCARCE
from atomo_cluster.ec2.places.adoption import make_or_adopt, settle
from atomo_cluster.ec2.places.network import Network
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.errors import CloudError

__all__ = ["Order", "order_on_demand", "order_spot", "parameters", "refusals"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """Identical hosts, ordered all or none, or as many as AWS has."""

    owned: ClusterTags
    launch: str
    role: str
    count: int
    types: tuple[str, ...]  # the wanted type first; spot accepts the others
    image: Image
    spot: bool
    least: int  # the fewest that do; fewer are an error
    admitted: str = ""  # a public key that the hosts let in besides that of the key pair


def tags(order: Order, cluster: Cluster, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the tag specifications of an instance and the resources that come with it."""
    extra = {
        "Name": f"{order.owned.cluster}-{order.role}",
        ROLE: order.role,
        LAUNCH: order.launch,
        HOURS: f"{cluster.max_hours:g}",
        MACHINE: this_machine(),
    }
    return [order.owned.specification(kind, extra) for kind in kinds]


def parameters(order: Order, cluster: Cluster, network: Network, *kinds: str) -> dict[str, Any]:
    """Returns the description of a host that RunInstances and launch templates share."""
    disk = {"VolumeSize": max(cluster.volume_gb, order.image.root_gb), "VolumeType": "gp3",
            "DeleteOnTermination": True, "Encrypted": True}  # fmt: skip
    described: dict[str, Any] = {
        "ImageId": order.image.id,
        "BlockDeviceMappings": [{"DeviceName": order.image.root_device, "Ebs": disk}],
        "InstanceInitiatedShutdownBehavior": "terminate",  # which makes the fuse one
        "MetadataOptions": {"HttpTokens": "required"},
        "TagSpecifications": tags(order, cluster, ["instance", "volume", *kinds]),
    }
    if network.key_name:  # in a dry run there may be none yet, nor a security group
        described["KeyName"] = network.key_name
    if network.placement_group:
        described["Placement"] = {"GroupName": network.placement_group}
    if profile := network.profile_of(order.role):
        described["IamInstanceProfile"] = {"Name": profile}
    if cluster.efa:
        described["NetworkInterfaces"] = [
            {
                "DeviceIndex": 0,
                "InterfaceType": "efa",
                "SubnetId": network.subnet.id,
                "Groups": [network.security_group] if network.security_group else [],
                "AssociatePublicIpAddress": network.subnet.public,
                "DeleteOnTermination": True,
            }
        ]
    elif network.security_group:
        described["SecurityGroupIds"] = [network.security_group]
    return described


def on_demand(order: Order, cluster: Cluster, network: Network) -> dict[str, Any]:
    """Returns the arguments of RunInstances."""
    described = parameters(order, cluster, network)
    if "NetworkInterfaces" not in described:
        described["SubnetId"] = network.subnet.id
    return {
        **described,
        "InstanceType": order.types[0],
        "UserData": user_data(cluster, order.spot, order.admitted),
        "MinCount": order.least,
        "MaxCount": order.count,
    }


def order_on_demand(
    aws: Aws, order: Order, cluster: Cluster, network: Network, say: Say
) -> list[str]:
    """Launches on-demand instances and returns their identifiers."""
    described = on_demand(order, cluster, network)

    def act() -> list[str]:
        answer = aws.call("ec2.run_instances", **described)
        return [instance["InstanceId"] for instance in answer["Instances"]]

    return settle(act)


def template(order: Order, cluster: Cluster, network: Network) -> dict[str, Any]:
    """Returns the arguments of CreateLaunchTemplate."""
    data = parameters(order, cluster, network, "spot-instances-request")
    data["UserData"] = base64.b64encode(
        user_data(cluster, order.spot, order.admitted).encode()
    ).decode()
    suffix = f"{order.role}-{network.subnet.zone}"  # each attempt has one of its own
    return {
        "LaunchTemplateName": f"{order.owned.label}-{order.launch}-{suffix}",
        "LaunchTemplateData": data,
        "TagSpecifications": [order.owned.specification("launch-template", {LAUNCH: order.launch})],
    }


def fleet(order: Order, cluster: Cluster, network: Network, name: str) -> dict[str, Any]:
    """Returns the arguments of CreateFleet: hosts in one zone, at least `least`, or none."""
    limit = {} if cluster.spot_price is None else {"MaxPrice": f"{cluster.spot_price:g}"}
    subnet = {} if cluster.efa else {"SubnetId": network.subnet.id}
    return {
        "Type": "instant",
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
                "Overrides": [{"InstanceType": type, **subnet, **limit} for type in order.types],
            }
        ],
        "SpotOptions": {
            "AllocationStrategy": "price-capacity-optimized",
            "SingleAvailabilityZone": True,
            "MinTargetCapacity": order.least,
        },
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": order.count,
            "SpotTargetCapacity": order.count,
            "DefaultTargetCapacityType": "spot",
        },
        "TagSpecifications": [order.owned.specification("fleet", {LAUNCH: order.launch})],
    }


def order_spot(aws: Aws, order: Order, cluster: Cluster, network: Network, say: Say) -> list[str]:
    """Launches spot instances and returns their identifiers.

    Raises:
        CloudError: there are too few; the caller has to terminate them.
    """
    described = template(order, cluster, network)
    name = described["LaunchTemplateName"]
    make_or_adopt(
        lambda: bool(aws.call("ec2.create_launch_template", **described)),
        lambda: has_template(aws, order, name) or None,
    )
    request = fleet(order, cluster, network, name)
    answer = settle(lambda: some_of(aws.call("ec2.create_fleet", **request), order))
    ids = all_of(answer, order)
    remove_template(aws, name, say)
    return ids


def has_template(aws: Aws, order: Order, name: str) -> bool:
    """True if the launch has made this template."""
    listed = aws.pages(
        "ec2.describe_launch_templates", "LaunchTemplates",
        Filters=order.owned.filters(**{f"tag:{LAUNCH}": order.launch}),
    )  # fmt: skip
    return name in [described["LaunchTemplateName"] for described in listed]


def remove_template(aws: Aws, name: str, say: Say) -> None:
    """Deletes the template of a fleet that has its hosts. It costs nothing: the hosts stay."""
    try:
        aws.call("ec2.delete_launch_template", LaunchTemplateName=name)
    except CloudError as error:
        say(f"launch template {name} stays, and costs nothing; `shutdown` deletes it: {error}")


def all_of(answer: dict[str, Any], order: Order) -> list[str]:
    """Returns the instances of a fleet.

    Raises:
        CloudError: there are too few.
    """
    ids = [id for batch in answer.get("Instances", []) for id in batch["InstanceIds"]]
    if len(ids) < order.least:
        raise too_few(order, len(ids), answer.get("Errors", []))
    return ids


def some_of(answer: dict[str, Any], order: Order) -> dict[str, Any]:
    """Returns the answer of a fleet that has any instance: with some, no second fleet is ordered.

    Raises:
        CloudError: the fleet has none.
    """
    if not answer.get("Instances"):
        raise too_few(order, 0, answer.get("Errors", []))
    return answer


def too_few(order: Order, got: int, errors: list[dict[str, Any]]) -> CloudError:
    """Returns the error for an incomplete fleet."""
    texts = {f"{error.get('ErrorCode', '?')}: {error.get('ErrorMessage', '')}" for error in errors}
    codes = [error.get("ErrorCode", "") for error in errors] or [NO_CAPACITY]
    code = next((code for code in codes if code in SCARCE), codes[0])
    return CloudError(
        f"spot: {got} of {order.count} {order.role}s of type {' or '.join(order.types)}: "
        f"{'; '.join(sorted(texts)) or 'AWS does not say why'}; give more alternative_types, "
        f"more zones, or --{order.role}-method on-demand",
        code,
    )


def refusals(aws: Aws, order: Order, cluster: Cluster, network: Network) -> dict[str, str]:
    """Maps each call of a launch to the error that DryRun predicts; empty if it would succeed."""
    calls: dict[str, dict[str, Any]] = {"ec2.run_instances": on_demand(order, cluster, network)}
    if order.spot:
        described = template(order, cluster, network)
        name = described["LaunchTemplateName"]
        market = {"MarketType": "spot"}
        calls["ec2.run_instances"]["InstanceMarketOptions"] = market
        calls["ec2.create_launch_template"] = described
        calls["ec2.create_fleet"] = fleet(order, cluster, network, name)
    answers = {action: aws.refusal(action, **words) for action, words in calls.items()}
    return {action: verdict(error) for action, error in answers.items()}


def verdict(error: CloudError | None) -> str:
    """Formats an error of DryRun; empty for errors that a real launch would not have."""
    if error is None or error.code.startswith("InvalidLaunchTemplate"):
        return ""  # the template that the fleet names is made only by the launch itself
    return str(error)
