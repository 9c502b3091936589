"""The rules of the cluster's security group: ssh from one range, everything inside the group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.places.adoption import settle
from atomo_cluster.errors import CloudError

__all__ = ["RuleSource", "foreign_rules", "open_for"]

SSH: Final = 22
EVERYTHING: Final = "-1"
# Kinds of sources in a rule: the list of the rule, and the key of a source in that list.
KINDS: Final[Mapping[str, str]] = {
    "IpRanges": "CidrIp",
    "Ipv6Ranges": "CidrIpv6",
    "PrefixListIds": "PrefixListId",
    "UserIdGroupPairs": "GroupId",
}
ABSENT: Final = "InvalidPermission.NotFound"  # somebody else has removed the rule
DUPLICATE: Final = "InvalidPermission.Duplicate"


@dataclass(frozen=True)
class RuleSource:
    """One source that a rule admits: a range of IPv4 or IPv6, a prefix list or a group."""

    kind: str  # a key of KINDS
    name: str
    protocol: str
    first: int  # port
    last: int

    @property
    def is_ssh(self) -> bool:
        """True if the rule is of the port of ssh alone."""
        return self.protocol == "tcp" and self.first == self.last == SSH

    @property
    def permission(self) -> dict[str, Any]:
        """The rule of this source alone, in the format of EC2."""
        rule: dict[str, Any] = {
            "IpProtocol": self.protocol,
            self.kind: [{KINDS[self.kind]: self.name}],
        }
        if self.protocol != EVERYTHING:
            rule |= {"FromPort": self.first, "ToPort": self.last}
        return rule

    def __str__(self) -> str:
        """Formats the source and its ports, e.g. `::/0 to tcp 22`."""
        if self.protocol == EVERYTHING:
            return f"{self.name} to every port"
        ports = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.name} to {self.protocol} {ports}"


def sources(rules: Sequence[Mapping[str, Any]]) -> Iterator[RuleSource]:
    """Yields each source of some rules."""
    for rule in rules:
        first, last = rule.get("FromPort", 0), rule.get("ToPort", 65535)
        for kind, key in KINDS.items():
            for source in rule.get(kind, []):
                yield RuleSource(kind, source.get(key, "?"), rule["IpProtocol"], first, last)


def inside(group: str) -> RuleSource:
    """Returns the rule that allows all traffic inside a group."""
    return RuleSource("UserIdGroupPairs", group, EVERYTHING, 0, 65535)


def foreign_rules(described: Mapping[str, Any], cidr: str) -> list[RuleSource]:
    """Lists the sources that a group admits and `launch` does not: rules made by hand."""
    group = str(described["GroupId"])
    own = RuleSource("IpRanges", cidr, "tcp", SSH, SSH)
    return [
        source
        for source in sources(described["IpPermissions"])
        if source not in (own, inside(group))
    ]


def open_for(aws: Aws, group: str, cidr: str, efa: bool) -> list[RuleSource]:
    """Sets the rules of the group, and returns the rules made by hand, which stay.

    Other sources of ssh's port, of IPv4 and IPv6, are removed: this machine had another address, or
    somebody opened the port by hand. With an empty `cidr` no outside address may use ssh. Rules of
    other ports stay.
    """
    described = settle(lambda: describe(aws, group))
    ingress = list(sources(described["IpPermissions"]))
    egress = list(sources(described.get("IpPermissionsEgress", [])))
    if cidr and RuleSource("IpRanges", cidr, "tcp", SSH, SSH) not in ingress:
        allow(aws, "ingress", group, ssh_rule(cidr))
    by_hand = foreign_rules(described, cidr)
    for stale in [source for source in by_hand if source.is_ssh]:
        revoke(aws, group, stale)
    if inside(group) not in ingress:
        allow(aws, "ingress", group, inside(group).permission)
    if efa and inside(group) not in egress:  # EFA does not count the rule for 0.0.0.0/0
        allow(aws, "egress", group, inside(group).permission)
    return [source for source in by_hand if not source.is_ssh]


def describe(aws: Aws, group: str) -> dict[str, Any]:
    """Returns the description of a group."""
    groups: list[dict[str, Any]] = aws.call(
        "ec2.describe_security_groups", GroupIds=[group]
    )["SecurityGroups"]  # fmt: skip
    return groups[0]


def allow(aws: Aws, direction: str, group: str, rule: dict[str, Any]) -> None:
    """Adds a rule, unless it exists."""
    action = f"ec2.authorize_security_group_{direction}"
    try:
        settle(lambda: aws.call(action, GroupId=group, IpPermissions=[rule]))
    except CloudError as error:
        if error.code != DUPLICATE:
            raise


def revoke(aws: Aws, group: str, stale: RuleSource) -> None:
    """Removes a rule, unless it is gone."""
    permissions = [stale.permission]
    try:
        aws.call("ec2.revoke_security_group_ingress", GroupId=group, IpPermissions=permissions)
    except CloudError as error:
        if error.code != ABSENT:
            raise


def ssh_rule(cidr: str) -> dict[str, Any]:
    """Returns the rule that lets these addresses use ssh."""
    ranges = [{"CidrIp": cidr, "Description": "ssh of the cluster's owner"}]
    return {"IpProtocol": "tcp", "FromPort": SSH, "ToPort": SSH, "IpRanges": ranges}
