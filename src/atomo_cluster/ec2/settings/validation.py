"""Validation of a cluster's settings: ranges, formats and contradictions."""

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from typing import Final, Protocol, runtime_checkable

from atomo_cluster.ec2.settings.terms import (
    AUTO,
    BAKED,
    LATEST,
    LONGEST_H,
    MASTER,
    METHODS,
    NO,
    ROLES,
    YES,
    split_commas,
)
from atomo_cluster.errors import ConfigError
from atomo_cluster.names import nearest

__all__ = ["check"]

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")
OWNER: Final = re.compile(r"[\w.@+=:/-]{0,128}")
REGION: Final = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
TAG: Final = re.compile(r"[\w .:/+@-]{1,128}=[\w .:/+=@-]{0,256}")
MOST_TAGS: Final = 40  # AWS takes 50 of a thing, and the cluster's own are among them
USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "n_masters": (1.0, 1.0),
    "n_workers": (1.0, 1000.0),
    "spot_price": (0.0001, 1000.0),
    "max_usd": (0.01, 1e6),
    "volume_gb": (10.0, 16384.0),
    "max_hours": (0.1, LONGEST_H),
    "connect_timeout": (1.0, 600.0),
    "autostop": (0.0, 60.0 * LONGEST_H),
    "max_restarts": (0.0, 10_000.0),
    "num_replicas_to_aggregate": (0.0, 1000.0),
}
PATTERNS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "name": (NAME, "a letter, then up to 39 letters, digits and dashes"),
    "owner": (OWNER, "up to 128 letters, digits and . @ + = : / _ -"),
    "ssh_username": (USER, "a user name such as ubuntu or ec2-user"),
    "image_id": (
        re.compile(rf"{LATEST}|{BAKED}|ami-[\w-]+"),
        f"{LATEST}, {BAKED}, or an image such as ami-0abc",
    ),
    "region": (REGION, "a region such as us-west-2"),
    "results": (
        re.compile(r"(?:s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[\w.=+-]+)*/?)?"),
        "s3://BUCKET/PREFIX",
    ),
    "permissions_boundary": (
        re.compile(r"[\w+=,.@-]{0,128}"),
        "the name of an IAM policy of the account, or none",
    ),
    "remote_dir": (re.compile(r"[\w.-]+"), "one folder name, below the home folder"),
    "nfs_mount_point": (re.compile(r"/[\w.-]+(?:/[\w.-]+)+"), "an absolute path, two levels deep"),
    "aws_end": (re.compile(f"{AUTO}|{YES}|{NO}"), "auto, yes or no"),
    "connect": (re.compile("ssh|ssm"), "ssh or ssm"),
    "storage": (
        re.compile(r"(?:(?:efs|fsx):fs-[0-9a-f]{8,40})?"),
        "efs:fs-0123456789abcdef0, or fsx:",
    ),
    "nfs_ip_address": (re.compile(r"[\w.:-]*"), "an address such as 172.31.14.225"),
}


@runtime_checkable
class Settings(Protocol):
    """The fields that cross checks read; `Cluster` has them, and calls `check` at construction."""

    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> str: ...
    @property
    def own_tags(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def region(self) -> str: ...
    @property
    def regions(self) -> str: ...
    @property
    def availability_zone(self) -> str: ...
    @property
    def zones(self) -> str: ...
    @property
    def named_zones(self) -> tuple[str, ...]: ...
    @property
    def subnet_id(self) -> str: ...
    @property
    def ssh_from(self) -> str: ...
    @property
    def ssh_from_anywhere(self) -> bool: ...
    @property
    def spot_price(self) -> float | None: ...
    @property
    def storage(self) -> str: ...
    @property
    def nfs_ip_address(self) -> str: ...
    @property
    def supervise(self) -> bool: ...
    @property
    def spread_zones(self) -> bool: ...
    @property
    def results(self) -> str: ...
    @property
    def key_name(self) -> str: ...
    @property
    def path_to_keyfile(self) -> str: ...
    def spot(self, role: str) -> bool: ...


def check(cluster: Settings) -> None:
    """Raises ConfigError for invalid settings."""
    for name in ("method", "master_method", "worker_method"):
        check_method(name, getattr(cluster, name))
    for name, (lowest, highest) in BOUNDS.items():
        check_bounds(name, getattr(cluster, name), lowest, highest)
    for name, (pattern, meaning) in PATTERNS.items():
        if not pattern.fullmatch(getattr(cluster, name)):
            raise ConfigError(f"{name} {getattr(cluster, name)!r}: {meaning}")
    for one in CHECKS:
        one(cluster)


def check_method(name: str, method: str) -> None:
    """Raises ConfigError for an unknown purchase method."""
    if method and method.lower() not in METHODS:
        raise ConfigError(f"unknown {name} {method!r}; {nearest(method, METHODS)}")


def check_bounds(name: str, value: float | int | None, lowest: float, highest: float) -> None:
    """Raises ConfigError for a number out of its range."""
    if value is not None and not lowest <= value <= highest:
        raise ConfigError(f"{name} must be from {lowest:g} to {highest:g}, got {value:g}")


def check_zone(cluster: Settings) -> None:
    """Checks that the zones belong to the regions and that the settings name them only once."""
    name = "availability_zone" if cluster.availability_zone else "zones"
    if cluster.availability_zone and cluster.zones:
        raise ConfigError("give availability_zone or zones, not both")
    if cluster.subnet_id and cluster.zones:
        raise ConfigError(f"zones {cluster.zones!r}: subnet_id is in one zone; give one of the two")
    regions = split_commas(cluster.regions) or (cluster.region,)
    for zone in cluster.named_zones:
        if not zone.startswith(regions):
            raise ConfigError(
                f"{name} {zone!r} is not in region {' or '.join(regions)!r}; "
                f"write e.g. {regions[0]}a, or leave it empty"
            )


def check_regions(cluster: Settings) -> None:
    """Checks the names of regions; with several, no setting may be tied to one region."""
    for region in split_commas(cluster.regions):
        if not REGION.fullmatch(region):
            raise ConfigError(f"regions {region!r}: a region such as us-west-2")
    for name in ("availability_zone", "subnet_id", "nfs_ip_address", "storage", "key_name"):
        if len(split_commas(cluster.regions)) > 1 and getattr(cluster, name) not in ("", "master"):
            raise ConfigError(
                f"{name} {getattr(cluster, name)!r} is in one region, and regions is "
                f"{cluster.regions!r}; leave one of the two empty"
            )


def check_tags(cluster: Settings) -> None:
    """Checks that additional tags are KEY=VALUE pairs and do not override the cluster's own."""
    for word in split_commas(cluster.tags):
        if not TAG.fullmatch(word):
            raise ConfigError(
                f"tags {word!r}: write KEY=VALUE, of letters, digits, spaces and . : / + - @ _, "
                "the key up to 128 characters and the value up to 256"
            )
    keys = [key for key, _ in cluster.own_tags]
    for key in keys:
        if key.lower().startswith(("aws:", "atomo:")) or key == "Name":
            raise ConfigError(f"tags: the key {key!r} is taken; choose one without aws: or atomo:")
    if len(keys) > MOST_TAGS or len(set(keys)) < len(keys):
        raise ConfigError(f"tags: up to {MOST_TAGS} different keys, got {len(keys)}")


def check_ssh_from(cluster: Settings) -> None:
    """Refuses very wide address ranges unless `ssh_from_anywhere` is set."""
    if not cluster.ssh_from:
        return
    try:
        network = IPv4Network(cluster.ssh_from)
    except ValueError as error:
        raise ConfigError(f"ssh_from {cluster.ssh_from!r}: {error}; e.g. 203.0.113.7/32") from None
    if network.prefixlen < 8 and not cluster.ssh_from_anywhere:
        raise ConfigError(
            f"ssh_from {cluster.ssh_from} would let {network.num_addresses:,} addresses try ssh; "
            "give a narrower one, or say ssh_from_anywhere: yes"
        )


def check_spot(cluster: Settings) -> None:
    """Refuses `spot_price` without spot instances."""
    if cluster.spot_price and not any(map(cluster.spot, ROLES)):
        raise ConfigError(f"spot_price {cluster.spot_price!r} needs method spot")


def check_storage(cluster: Settings) -> None:
    """Refuses two shared folders."""
    if cluster.storage and cluster.nfs_ip_address:
        raise ConfigError(
            f"storage {cluster.storage!r} and nfs_ip_address {cluster.nfs_ip_address!r}: one of "
            "them is mounted at nfs_mount_point; leave the other empty"
        )


def check_supervised(cluster: Settings) -> None:
    """Checks the settings that depend on `supervise`."""
    if cluster.results and not cluster.supervise:
        raise ConfigError(
            f"results {cluster.results!r} needs supervise: yes, which takes them there"
        )
    if cluster.spread_zones:
        check_spread(cluster)
    if cluster.supervise and cluster.spot(MASTER):
        raise ConfigError(
            "supervise: nobody replaces the master, which has the supervisor; master_method: "
            "on-demand keeps it from being taken back"
        )


def check_spread(cluster: Settings) -> None:
    """Refuses `spread_zones` with a setting that keeps all hosts in one zone."""
    if not cluster.supervise:
        raise ConfigError("spread_zones: yes needs supervise: yes, which replaces workers")
    for name in ("availability_zone", "subnet_id", "placement_group", "efa"):
        if getattr(cluster, name):
            raise ConfigError(
                f"spread_zones: yes, and {name} {getattr(cluster, name)!r} keeps all hosts in one "
                "zone; leave one of the two out"
            )


def check_key(cluster: Settings) -> None:
    """Refuses a key pair without its private key."""
    if cluster.key_name and not cluster.path_to_keyfile:
        raise ConfigError(
            f"key_name {cluster.key_name!r} needs path_to_keyfile; leave both empty and a key is "
            "made"
        )


def check_paths(cluster: Settings) -> None:
    """Refuses paths that contain . or .. ."""
    for name in ("remote_dir", "nfs_mount_point", "base_out_dir", "state_dir"):
        path = getattr(cluster, name)
        if {".", ".."} & set(path.split("/")):
            raise ConfigError(f"{name} {path!r}: a path without . and .. in it")


CHECKS: Final[tuple[Callable[[Settings], None], ...]] = (
    check_tags,
    check_regions,
    check_zone,
    check_ssh_from,
    check_spot,
    check_key,
    check_supervised,
    check_storage,
    check_paths,
)
