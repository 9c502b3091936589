"""The network of a cluster: subnet, security group, placement group and key pair."""

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.search import list_resources
from atomo_cluster.ec2.aws.tags import LAUNCH, ClusterTags
from atomo_cluster.ec2.hosts.keys import public_half
from atomo_cluster.ec2.places.adoption import make_or_adopt
from atomo_cluster.ec2.places.ingress import open_for
from atomo_cluster.ec2.places.profiles import make_profiles
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import MASTER
from atomo_cluster.errors import ConfigError

__all__ = ["Network", "Subnet", "allowed_cidr", "find_subnet", "find_subnets", "prepare_network"]

ANYWHERE: Final = "0.0.0.0/0"
TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Subnet:
    """A subnet, which is in one zone."""

    id: str
    vpc: str
    zone: str
    cidr: str
    public: bool  # hosts get a public address by themselves


@dataclass(frozen=True)
class Network:
    """The network resources that all hosts of the cluster share."""

    subnet: Subnet
    security_group: str
    placement_group: str | None
    key_name: str
    profile: str = ""  # the instance profile of the master; empty: none
    hosts_profile: str = ""  # that of all others

    def profile_of(self, role: str) -> str:
        """Returns the instance profile of a role; empty if there is none."""
        return self.profile if role == MASTER else self.hosts_profile


def find_subnet(aws: Aws, subnet_id: str, zone: str) -> Subnet:
    """Returns the subnet with this identifier or, if that is empty, the zone's default subnet.

    Raises:
        ConfigError: there is none.
    """
    if subnet_id:
        descriptions = aws.constant("ec2.describe_subnets", "Subnets", SubnetIds=[subnet_id])
    else:
        filters = [
            {"Name": "default-for-az", "Values": ["true"]},
            {"Name": "availability-zone", "Values": [zone]},
        ]
        descriptions = aws.constant("ec2.describe_subnets", "Subnets", Filters=filters)
    if not descriptions:
        raise ConfigError(
            f"zone {zone or aws.region} has no default subnet: `aws ec2 create-default-subnet "
            f"--availability-zone {zone}` makes one, or give subnet_id"
        )
    return subnet(descriptions[0])


def find_subnets(aws: Aws, zones: Sequence[str]) -> list[Subnet]:
    """Returns the default subnets of these zones, in their order; some zones may have none."""
    filters = [
        {"Name": "default-for-az", "Values": ["true"]},
        {"Name": "availability-zone", "Values": list(zones)},
    ]
    subnets = map(subnet, aws.constant("ec2.describe_subnets", "Subnets", Filters=filters))
    return sorted(subnets, key=lambda subnet_in_zone: zones.index(subnet_in_zone.zone))


def subnet(description: Mapping[str, Any]) -> Subnet:
    """Parses the description of a subnet."""
    return Subnet(
        id=description["SubnetId"],
        vpc=description["VpcId"],
        zone=description["AvailabilityZone"],
        cidr=description["CidrBlock"],
        public=bool(description.get("MapPublicIpOnLaunch")),
    )


def allowed_cidr(cluster: Cluster) -> str:
    """Returns the range that may use ssh: by the settings, else this machine's public address.

    Empty where ssh goes through Session Manager.

    Raises:
        ConfigError: the address cannot be determined.
    """
    if cluster.managed:
        return ""
    if cluster.ssh_from_anywhere and not cluster.ssh_from:
        return ANYWHERE
    if cluster.ssh_from:
        return cluster.ssh_from
    try:
        with urllib.request.urlopen(cluster.check_ip_url, timeout=TIMEOUT_S) as answer:
            return f"{IPv4Address(answer.read(64).decode().strip())}/32"
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ConfigError(
            f"{cluster.check_ip_url} did not say this machine's address ({error}); give it as "
            "--ssh-from, e.g. --ssh-from 203.0.113.7/32"
        ) from error


def prepare_network(
    aws: Aws,
    cluster: Cluster,
    owned: ClusterTags,
    launch: str,
    subnet: Subnet,
    cidr: str,
    say: Callable[[str], None],
) -> Network:
    """Makes the missing parts of the cluster's network and keeps the others."""
    group = security_group(aws, owned, launch, subnet)
    if by_hand := open_for(aws, group, cidr, cluster.efa):
        listed = ", ".join(map(str, by_hand))
        say(f"security group {group} also lets in, by rules made by hand that stay: {listed}")
    profile, hosts_profile = make_profiles(aws, cluster, owned, launch)
    return Network(
        subnet=subnet,
        security_group=group,
        placement_group=placement_group(aws, owned, launch) if cluster.placement_group else None,
        key_name=cluster.key_name or key_pair(aws, cluster, owned, launch),
        profile=profile,
        hosts_profile=hosts_profile,
    )


def security_group(aws: Aws, owned: ClusterTags, launch: str, subnet: Subnet) -> str:
    """Returns the cluster's security group and makes it if needed."""
    filters = [*owned.filters(), {"Name": "vpc-id", "Values": [subnet.vpc]}]

    def find() -> str | None:
        groups = aws.pages("ec2.describe_security_groups", "SecurityGroups", Filters=filters)
        return next((str(group["GroupId"]) for group in groups), None)

    def make() -> str:
        made = aws.call(
            "ec2.create_security_group",
            GroupName=owned.label,
            Description="ssh from one address; everything within",
            VpcId=subnet.vpc,
            TagSpecifications=[owned.specification("security-group", {LAUNCH: launch})],
        )
        return str(made["GroupId"])

    return find() or make_or_adopt(make, find)


def placement_group(aws: Aws, owned: ClusterTags, launch: str) -> str:
    """Returns the cluster's placement group and makes it if needed."""

    def find() -> str | None:
        groups = (thing.id for thing in list_resources(aws, owned.filters())
                  if thing.kind == "placement-group")  # fmt: skip
        return next(groups, None)

    def make() -> str:
        aws.call(
            "ec2.create_placement_group",
            GroupName=owned.label,
            Strategy="cluster",
            TagSpecifications=[owned.specification("placement-group", {LAUNCH: launch})],
        )
        return owned.label

    return find() or make_or_adopt(make, find)


def key_pair(aws: Aws, cluster: Cluster, owned: ClusterTags, launch: str) -> str:
    """Returns the cluster's own key pair and makes it if needed; the private key stays local."""

    def find() -> str | None:
        pairs = aws.pages("ec2.describe_key_pairs", "KeyPairs", Filters=owned.filters())
        return next((str(pair["KeyName"]) for pair in pairs), None)

    def make() -> str:
        aws.call(
            "ec2.import_key_pair",
            KeyName=owned.label,
            PublicKeyMaterial=public_half(cluster),
            TagSpecifications=[owned.specification("key-pair", {LAUNCH: launch})],
        )
        return owned.label

    return find() or make_or_adopt(make, find)
