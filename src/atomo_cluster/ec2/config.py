"""The settings of a cluster: one frozen value, checked when it is made.

Each field is a key of the YAML file and an option of the command line. The names that the
published script used keep their meaning.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final, final

from atomo_cluster.errors import ConfigError
from atomo_cluster.names import nearest

__all__ = ["LATEST", "MASTER", "ROLES", "WORKER", "Cluster"]

SPOT: Final = "spot"
ON_DEMAND: Final = "on-demand"
METHODS: Final = (SPOT, ON_DEMAND, "reserved")
MASTER: Final = "master"
WORKER: Final = "worker"
ROLES: Final = (MASTER, WORKER)
LATEST: Final = "latest"
LONGEST_H: Final = 720.0
NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")
OWNER: Final = re.compile(r"[\w.@+=:/-]{0,128}")
REGION: Final = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
TAG: Final = re.compile(r"[\w .:/+@-]{1,128}=[\w .:/+=@-]{0,256}")
MOST_TAGS: Final = 40  # AWS takes 50 of a thing, and the cluster's own are among them
USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def option(default: Any, text: str) -> Any:
    """A field with the text that `--help` and the file of `init` show."""
    return field(default=default, metadata={"help": text})


@final
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One cluster: a master and its workers."""

    name: str = option("atomo", "the cluster's name; everything is tagged with it")
    owner: str = option("", "the second tag; empty: the user or role that AWS knows you by")
    tags: str = option("", "further tags of all that is made, with commas, as team=vision,run=7")
    region: str = option("us-east-1", "AWS region")
    regions: str = option(
        "", "regions that will do, with commas; the cheapest first; empty: region alone"
    )
    availability_zone: str = option("", "the one zone that will do; empty: see zones")
    method: str = option(
        "", "of all hosts: spot, on-demand, or reserved (on-demand); empty: the next two"
    )
    master_method: str = option("", "of the master; empty: method, or else on-demand")
    worker_method: str = option("", "of the workers; empty: method, or else spot")
    zones: str = option(
        "", "zones that will do, with commas; the cheapest first; empty: all that have the types"
    )
    n_masters: int = option(1, "always 1")
    n_workers: int = option(2, "hosts besides the master's")
    master_type: str = option("m5.large", "instance type of the master")
    worker_type: str = option("m5.large", "instance type of the workers")
    alternative_types: str = option(
        "", "further types for workers, with commas; more => fewer capacity errors"
    )
    image_id: str = option(
        LATEST, "ami-..., or latest: deep-learning image for GPU types, else Ubuntu"
    )
    spot_price: float | None = option(
        None, "spot: most that an instance may cost, USD per hour; empty: on-demand price"
    )
    volume_gb: int = option(100, "root disk of each host, GB")
    max_hours: float = option(8.0, "fuse: each host terminates itself after so many hours")
    max_usd: float | None = option(
        None, "most that the whole cluster may cost until its fuses, USD; empty: no limit"
    )
    supervise: bool = option(
        False, "yes: train leaves a supervisor on the master, which replaces workers that go"
    )
    autostop: float = option(
        30.0, "supervise: end hosts once nothing has trained for so many minutes; 0: never"
    )
    max_restarts: int = option(20, "supervise: how often a job is started again")
    results: str = option("", "supervise: s3://BUCKET/PREFIX where results go; empty: nowhere")
    key_name: str = option("", "EC2 key pair; empty: one is made and deleted with the cluster")
    path_to_keyfile: str = option("", "private key of key_name; it never leaves this machine")
    ssh_username: str = option("ubuntu", "user of the image")
    ssh_from: str = option("", "CIDR that may use ssh; empty: this machine's public address")
    ssh_from_anywhere: bool = option(False, "yes: let the whole internet try ssh (0.0.0.0/0)")
    check_ip_url: str = option(
        "https://checkip.amazonaws.com", "says this machine's public address"
    )
    ssh_config: str = option("", "ssh_config file to use, e.g. for a bastion; empty: your own")
    connect_timeout: float = option(10.0, "longest wait for a host to accept ssh, seconds")
    private_addresses: bool = option(False, "yes: reach hosts by private address, as in a VPN")
    subnet_id: str = option("", "empty: the default subnet of the zone")
    placement_group: bool = option(False, "yes: pack the hosts close together")
    efa: bool = option(False, "yes: Elastic Fabric Adapter, for types that have it")
    nfs_ip_address: str = option(
        "", "EFS mount target or NFS server; master: its disk; empty: none"
    )
    nfs_mount_point: str = option("/home/ubuntu/shared", "where it is mounted, on every host")
    base_out_dir: str = option("", "checkpoints go here; empty: nfs_mount_point/name, or runs")
    remote_dir: str = option("atomo", "the checkout on the hosts, below the home folder")
    state_dir: str = option("~/.atomo", "known hosts and keys made for clusters, here")
    setup_commands: tuple[str, ...] = option((), "run once on every host, after bootstrap")
    pre_commands: tuple[str, ...] = option((), "run on every host before training")
    master_pre_commands: tuple[str, ...] = option((), "run on the master before training")
    train_commands: tuple[str, ...] = option((), "run on the master instead of run_pytorch.sh")

    def __post_init__(self) -> None:
        for name in ("method", "master_method", "worker_method"):
            check_method(name, getattr(self, name))
        for name, (lowest, highest) in BOUNDS.items():
            check_bounds(name, getattr(self, name), lowest, highest)
        for name, (pattern, meaning) in PATTERNS.items():
            if not pattern.fullmatch(getattr(self, name)):
                raise ConfigError(f"{name} {getattr(self, name)!r}: {meaning}")
        for check in CHECKS:
            check(self)

    def method_of(self, role: str) -> str:
        """How the hosts of a role are bought: spot, on-demand or reserved."""
        own, usual = (
            (self.master_method, ON_DEMAND) if role == MASTER else (self.worker_method, SPOT)
        )
        return (own or self.method or usual).lower()

    def spot(self, role: str) -> bool:
        """Whether the hosts of a role are spot instances."""
        return self.method_of(role) == SPOT

    @property
    def hosts(self) -> int:
        return self.n_masters + self.n_workers

    @property
    def outlives(self) -> bool:
        """Whether the shared folder is another machine's, and stays when the hosts end."""
        return self.nfs_ip_address not in ("", MASTER)

    @property
    def needs_profile(self) -> bool:
        """Whether the master asks things of AWS."""
        return self.supervise or bool(self.results)

    @property
    def worker_types(self) -> tuple[str, ...]:
        """The type of the workers, then what may stand in for it."""
        return (self.worker_type, *words(self.alternative_types))

    @property
    def all_regions(self) -> tuple[str, ...]:
        """The regions that will do: where zones are named, those that have one of them."""
        return tuple(
            region for region in dict.fromkeys(words(self.regions) or (self.region,))
            if not self.zones or any(zone.startswith(region) for zone in words(self.zones))
        )  # fmt: skip

    def at(self, region: str) -> "Cluster":
        """This cluster in one of its regions."""
        zones = ",".join(zone for zone in words(self.zones) if zone.startswith(region))
        return replace(self, region=region, regions="", zones=zones)

    @property
    def own_tags(self) -> tuple[tuple[str, str], ...]:
        """The further tags, key and value."""
        pairs = (word.partition("=") for word in words(self.tags))
        return tuple((key, value) for key, _, value in pairs)

    @property
    def named_zones(self) -> tuple[str, ...]:
        """The zones that the settings name."""
        return words(self.availability_zone or self.zones)

    @property
    def out_dir(self) -> str:
        """Where checkpoints go, on the hosts."""
        shared = f"{self.nfs_mount_point}/{self.name}" if self.nfs_ip_address else "runs"
        return self.base_out_dir or shared

    @property
    def state(self) -> Path:
        """The folder here that belongs to this cluster."""
        return Path(self.state_dir).expanduser() / self.name


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
}
PATTERNS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "name": (NAME, "a letter, then up to 39 letters, digits and dashes"),
    "owner": (OWNER, "up to 128 letters, digits and . @ + = : / _ -"),
    "ssh_username": (USER, "a user name such as ubuntu or ec2-user"),
    "image_id": (re.compile(rf"{LATEST}|ami-[\w-]+"), f"{LATEST}, or an image such as ami-0abc"),
    "region": (REGION, "a region such as us-west-2"),
    "results": (
        re.compile(r"(?:s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[\w.=+-]+)*/?)?"),
        "s3://BUCKET/PREFIX",
    ),
    "remote_dir": (re.compile(r"[\w.-]+"), "one folder name, below the home folder"),
    "nfs_mount_point": (re.compile(r"/[\w.-]+(?:/[\w.-]+)+"), "an absolute path, two levels deep"),
    "nfs_ip_address": (re.compile(r"[\w.:-]*"), "an address such as 172.31.14.225"),
}


def words(text: str) -> tuple[str, ...]:
    """What commas separate."""
    return tuple(word for word in (one.strip() for one in text.split(",")) if word)


def check_method(name: str, method: str) -> None:
    """Raises ConfigError for a way to buy hosts that there is not."""
    if method and method.lower() not in METHODS:
        raise ConfigError(f"unknown {name} {method!r}; {nearest(method, METHODS)}")


def check_bounds(name: str, value: float | int | None, lowest: float, highest: float) -> None:
    """Raises ConfigError for a number that is out of its range."""
    if value is not None and not lowest <= value <= highest:
        raise ConfigError(f"{name} must be from {lowest:g} to {highest:g}, got {value:g}")


def check_zone(cluster: Cluster) -> None:
    """A zone is its region's name and a letter."""
    name = "availability_zone" if cluster.availability_zone else "zones"
    if cluster.availability_zone and cluster.zones:
        raise ConfigError("give availability_zone or zones, not both")
    if cluster.subnet_id and cluster.zones:
        raise ConfigError(f"zones {cluster.zones!r}: subnet_id is in one zone; give one of the two")
    regions = words(cluster.regions) or (cluster.region,)
    for zone in cluster.named_zones:
        if not zone.startswith(regions):
            raise ConfigError(
                f"{name} {zone!r} is not in region {' or '.join(regions)!r}; "
                f"write e.g. {regions[0]}a, or leave it empty"
            )


def check_regions(cluster: Cluster) -> None:
    """Several regions are names of regions, and nothing is named that is in one of them only."""
    for region in words(cluster.regions):
        if not REGION.fullmatch(region):
            raise ConfigError(f"regions {region!r}: a region such as us-west-2")
    for name in ("availability_zone", "subnet_id", "nfs_ip_address", "key_name"):
        if len(words(cluster.regions)) > 1 and getattr(cluster, name) not in ("", "master"):
            raise ConfigError(
                f"{name} {getattr(cluster, name)!r} is in one region, and regions is "
                f"{cluster.regions!r}; leave one of the two empty"
            )


def check_tags(cluster: Cluster) -> None:
    """Further tags are pairs, and none is of those that find the cluster."""
    for word in words(cluster.tags):
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


def check_ssh_from(cluster: Cluster) -> None:
    """The whole internet is let in only where that was asked for by name."""
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


def check_spot(cluster: Cluster) -> None:
    """What only spot instances have."""
    if cluster.spot_price and not any(map(cluster.spot, ROLES)):
        raise ConfigError(f"spot_price {cluster.spot_price!r} needs method spot")


def check_supervised(cluster: Cluster) -> None:
    """What only a supervisor does."""
    if cluster.results and not cluster.supervise:
        raise ConfigError(
            f"results {cluster.results!r} needs supervise: yes, which takes them there"
        )
    if cluster.supervise and cluster.spot(MASTER):
        raise ConfigError(
            "supervise: nobody replaces the master, which has the supervisor; master_method: "
            "on-demand keeps it from being taken back"
        )


def check_key(cluster: Cluster) -> None:
    """A key pair is of no use here without its private half."""
    if cluster.key_name and not cluster.path_to_keyfile:
        raise ConfigError(
            f"key_name {cluster.key_name!r} needs path_to_keyfile; leave both empty and a key is "
            "made"
        )


def check_paths(cluster: Cluster) -> None:
    """What is written to lies where its setting says, and not above that."""
    for name in ("remote_dir", "nfs_mount_point", "base_out_dir", "state_dir"):
        path = getattr(cluster, name)
        if {".", ".."} & set(path.split("/")):
            raise ConfigError(f"{name} {path!r}: a path without . and .. in it")


CHECKS: Final[tuple[Callable[[Cluster], None], ...]] = (
    check_tags,
    check_regions,
    check_zone,
    check_ssh_from,
    check_spot,
    check_key,
    check_supervised,
    check_paths,
)
