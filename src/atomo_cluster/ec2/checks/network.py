"""Checks of the network: subnet, keys, security group."""

import base64

from atomo_cluster.ec2.aws.session_manager import require_programs
from atomo_cluster.ec2.aws.tags import as_dict
from atomo_cluster.ec2.checks.results import CheckContext, CheckResult, failed, ok, unknown
from atomo_cluster.ec2.hosts.keys import check_keyfile, keyfile, public_key_of, require_program
from atomo_cluster.ec2.places.ingress import RuleSource, foreign_rules
from atomo_cluster.ec2.places.network import ANYWHERE, Subnet, allowed_cidr
from atomo_cluster.ec2.places.zones import places
from atomo_cluster.ec2.settings.cluster import Cluster

__all__ = ["key_pair", "security_group", "subnet"]


def site_subnet(site: CheckContext) -> Subnet:
    """Returns the first possible subnet; the others are default subnets of the same network."""
    return places(site.aws, site.cluster)[0]


def subnet(site: CheckContext) -> CheckResult:
    """Checks that a subnet exists, and that hosts in it can be reached."""
    chosen, cluster = site_subnet(site), site.cluster
    if cluster.availability_zone and cluster.availability_zone != chosen.zone:
        return failed(
            f"{chosen.id} is in {chosen.zone}, and availability_zone is {cluster.availability_zone}"
        )
    if not chosen.public and not cluster.private_addresses and not cluster.managed:
        return failed(
            f"hosts in {chosen.id} get no public address, so nobody reaches them from here; choose "
            "another subnet_id, or say private_addresses: yes where a VPN or bastion leads there"
        )
    return ok(f"{chosen.id} ({chosen.cidr}) in {chosen.zone}")


def key_pair(site: CheckContext) -> CheckResult:
    """Checks that both halves of the key exist and match."""
    cluster = site.cluster
    require_program("ssh")
    require_program("ssh-keyscan")
    if cluster.through_sessions:
        require_programs()
    if cluster.path_to_keyfile and not cluster.key_name:
        return failed(
            f"path_to_keyfile {cluster.path_to_keyfile!r} needs key_name, its key pair's name in "
            f"{site.aws.region}; leave both empty and a key is made"
        )
    if not cluster.key_name:
        made = site.aws.pages("ec2.describe_key_pairs", "KeyPairs", Filters=site.owned.filters())
        if list(made) and not keyfile(cluster).exists():
            return failed(
                f"the cluster's key was made on another machine, and {keyfile(cluster)} is not "
                "here: copy it from there, or `shutdown` first"
            )
        return ok(f"one is made with the cluster; its private half stays in {keyfile(cluster)}")
    trouble = check_keyfile(keyfile(cluster))
    if trouble:
        return failed(f"path_to_keyfile: {trouble}")
    filters = [{"Name": "key-name", "Values": [cluster.key_name]}]
    pairs = list(
        site.aws.pages("ec2.describe_key_pairs", "KeyPairs", Filters=filters, IncludePublicKey=True)
    )
    if not pairs:
        return failed(
            f"region {site.aws.region} has no key pair {cluster.key_name!r}; import yours with "
            f"`aws ec2 import-key-pair`, or leave key_name and path_to_keyfile empty"
        )
    return halves(cluster, pairs[0].get("PublicKey", ""))


def halves(cluster: Cluster, public: str) -> CheckResult:
    """Checks that the local private key matches the key pair in EC2."""
    if len(public.split()) < 2:
        return unknown(f"AWS does not show the public half of {cluster.key_name}")
    path = keyfile(cluster)
    if base64.b64decode(public.split()[1]) != base64.b64decode(public_key_of(path).split()[1]):
        return failed(
            f"{path} is not the private half of {cluster.key_name!r}; give the right "
            "path_to_keyfile, or leave both empty"
        )
    return ok(f"{cluster.key_name}, {path}")


def security_group(site: CheckContext) -> CheckResult:
    """Reports the addresses that may use ssh; fails if a foreign group has the cluster's name."""
    cidr, by_hand = allowed_cidr(site.cluster), ""
    filters = [{"Name": "group-name", "Values": [site.owned.label]},
               {"Name": "vpc-id", "Values": [site_subnet(site).vpc]}]  # fmt: skip
    for group in site.aws.pages("ec2.describe_security_groups", "SecurityGroups", Filters=filters):
        if not site.owned.owns(as_dict(group)):
            return failed(
                f"{group['GroupId']} is called {site.owned.label} and lacks the cluster's tags; "
                "delete it, or give the cluster another name"
            )
        by_hand += "".join(map(by_hand_text, foreign_rules(group, cidr)))
    if not cidr:
        return ok(f"no port is open; ssh goes through Session Manager{by_hand}")
    warning = "; THE WHOLE INTERNET MAY TRY, as ssh_from_anywhere asks" if cidr == ANYWHERE else ""
    return ok(f"ssh from {cidr}{warning}{by_hand}")


def by_hand_text(rule: RuleSource) -> str:
    """Formats a rule that is not of the cluster."""
    return f"; also {rule}" + (", which `launch` removes" if rule.is_ssh else ", made by hand")
