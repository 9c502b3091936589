"""The settings of a cluster: one frozen value, checked at construction.

Each field is a key of the YAML file and an option of the command line. The names that the
published script used keep their meaning.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from atomo_cluster.ec2.settings.terms import (
    AUTO,
    LATEST,
    MASTER,
    NO,
    ON_DEMAND,
    SPOT,
    SSM,
    split_commas,
)
from atomo_cluster.ec2.settings.validation import check

__all__ = ["Cluster"]


def option(default: Any, text: str) -> Any:
    """Declares a field with the text that `--help` and the file of `init` show."""
    return field(default=default, metadata={"help": text})


@final
@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Settings of one cluster: a master and its workers."""

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
        LATEST, "ami-...; latest: deep-learning image for GPU types, else Ubuntu; baked: by `bake`"
    )
    spot_price: float | None = option(
        None, "spot: most that an instance may cost, USD per hour; empty: on-demand price"
    )
    volume_gb: int = option(100, "root disk of each host, GB")
    max_hours: float = option(8.0, "fuse: each host terminates itself after so many hours")
    aws_end: str = option(
        AUTO,
        "AWS terminates a host that is alive 15 minutes after its fuse; auto: where it lets "
        "launch schedule that; yes: an error where not; no: never",
    )
    max_usd: float | None = option(
        None, "most that the whole cluster may cost until its fuses, USD; empty: no limit"
    )
    supervise: bool = option(
        False, "yes: train leaves a supervisor on the master, which replaces workers that go"
    )
    autostop: float = option(
        30.0, "supervise: end hosts once nothing has trained for so many minutes; 0: never"
    )
    max_restarts: int = option(
        20, "supervise: how often a job is started again after a loss of hosts or processes"
    )
    spread_zones: bool = option(
        False, "supervise: yes: replace workers in other zones too; traffic between zones costs"
    )
    results: str = option("", "supervise: s3://BUCKET/PREFIX where results go; empty: nowhere")
    permissions_boundary: str = option(
        "", "IAM policy that bounds the roles made; empty: atomo-NAME-boundary; none: unbounded"
    )
    key_name: str = option("", "EC2 key pair; empty: one is made and deleted with the cluster")
    path_to_keyfile: str = option("", "private key of key_name; it never leaves this machine")
    ssh_username: str = option("ubuntu", "user of the image")
    connect: str = option("ssh", "ssh, or ssm: ssh through AWS's Session Manager, no port open")
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
    storage: str = option("", "efs:fs-... or fsx:fs-..., which all hosts mount; empty: none")
    nfs_mount_point: str = option("/home/ubuntu/shared", "where it is mounted, on every host")
    base_out_dir: str = option("", "checkpoints go here; empty: nfs_mount_point/name, or runs")
    remote_dir: str = option("atomo", "the checkout on the hosts, below the home folder")
    state_dir: str = option("~/.atomo", "known hosts and keys made for clusters, here")
    setup_commands: tuple[str, ...] = option((), "run once on every host, after bootstrap")
    pre_commands: tuple[str, ...] = option((), "run on every host before training")
    master_pre_commands: tuple[str, ...] = option((), "run on the master before training")
    train_commands: tuple[str, ...] = option((), "run on the master instead of run_pytorch.sh")
    num_replicas_to_aggregate: int | None = option(
        None, "gradients that a step waits for: --num-aggregate of jobs; empty: the job's options"
    )

    def __post_init__(self) -> None:
        check(self)

    def method_of(self, role: str) -> str:
        """Returns the purchase method of a role: spot, on-demand or reserved."""
        own, usual = (
            (self.master_method, ON_DEMAND) if role == MASTER else (self.worker_method, SPOT)
        )
        return (own or self.method or usual).lower()

    def spot(self, role: str) -> bool:
        """True if the hosts of a role are spot instances."""
        return self.method_of(role) == SPOT

    @property
    def hosts(self) -> int:
        return self.n_masters + self.n_workers

    @property
    def outlives(self) -> bool:
        """True if the shared folder is on another machine and stays when the hosts end."""
        return bool(self.storage) or self.nfs_ip_address not in ("", MASTER)

    @property
    def shares(self) -> bool:
        """True if there is a shared folder."""
        return bool(self.storage or self.nfs_ip_address)

    @property
    def needs_profile(self) -> bool:
        """True if the master calls AWS, and so needs an instance profile."""
        return self.supervise or bool(self.results)

    @property
    def makes_roles(self) -> bool:
        """True if hosts have instance profiles, whose roles are made with the cluster."""
        return self.needs_profile or self.managed

    @property
    def aws_ends(self) -> bool:
        """True if AWS ends hosts after their fuses, where it lets a launch schedule that."""
        return self.aws_end != NO

    @property
    def through_sessions(self) -> bool:
        """True if ssh uses Session Manager; with private addresses it is not needed."""
        return self.connect == SSM and not self.private_addresses

    @property
    def managed(self) -> bool:
        """True if Session Manager may connect to the hosts."""
        return self.connect == SSM

    @property
    def worker_types(self) -> tuple[str, ...]:
        """The type of the workers, followed by its alternatives."""
        return (self.worker_type, *split_commas(self.alternative_types))

    @property
    def all_regions(self) -> tuple[str, ...]:
        """The accepted regions; if zones are named, only regions that have one of them."""
        return tuple(
            region for region in dict.fromkeys(split_commas(self.regions) or (self.region,))
            if not self.zones or any(zone.startswith(region) for zone in split_commas(self.zones))
        )  # fmt: skip

    def at(self, region: str) -> "Cluster":
        """Returns the settings for one of the accepted regions."""
        zones = ",".join(zone for zone in split_commas(self.zones) if zone.startswith(region))
        return replace(self, region=region, regions="", zones=zones)

    def moved(self, region: str) -> "Cluster":
        """Returns the settings for a region that they do not name, without other places."""
        return replace(
            self, region=region, regions="", zones="", availability_zone="", subnet_id=""
        )

    @property
    def own_tags(self) -> tuple[tuple[str, str], ...]:
        """The user's additional tags as (key, value)."""
        pairs = (word.partition("=") for word in split_commas(self.tags))
        return tuple((key, value) for key, _, value in pairs)

    @property
    def named_zones(self) -> tuple[str, ...]:
        """The zones that the settings name."""
        return split_commas(self.availability_zone or self.zones)

    @property
    def out_dir(self) -> str:
        """The folder of checkpoints on the hosts."""
        shared = f"{self.nfs_mount_point}/{self.name}" if self.shares else "runs"
        return self.base_out_dir or shared

    @property
    def state(self) -> Path:
        """The local folder of this cluster."""
        return Path(self.state_dir).expanduser() / self.name
