"""The target hosts of a command: of the cluster, of all clusters, or of a file."""

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws.inventory import Instance, instances, owners_instances
from atomo_cluster.ec2.aws.session_manager import proxy_command, require_programs
from atomo_cluster.ec2.hosts.host_files import alias
from atomo_cluster.ec2.hosts.host_keys import HostKeys, console_keys
from atomo_cluster.ec2.hosts.keys import keyfile
from atomo_cluster.ec2.hosts.ssh import Host, Ssh
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.places.instance_types import instance_types
from atomo_cluster.ec2.places.network import find_subnet
from atomo_cluster.errors import CloudError, ConfigError
from atomo_cluster.names import nearest

__all__ = [
    "cluster_hosts",
    "cluster_master",
    "host_keys",
    "hosts_of",
    "inner_network",
    "owners_hosts",
    "select",
    "ssh_of",
    "to_host",
]

LINE: Final = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(\d+))?")


def cluster_hosts(run: Run) -> list[Host]:
    """Returns the hosts of the cluster, or of --hostfile, the master first.

    Raises:
        CloudError: no master runs.
        ConfigError: the file is invalid.
    """
    if run.options.hostfile:
        return hosts_in_file(run.options.hostfile)
    return hosts_of(run, running_instances(run))


def cluster_master(run: Run) -> Host:
    """Returns the master of the cluster, or of --hostfile; addresses of workers are not needed.

    Raises:
        CloudError: no master runs.
        ConfigError: the file is invalid, or the master has no address.
    """
    if run.options.hostfile:
        return hosts_in_file(run.options.hostfile)[0]
    return to_host(run, 0, running_instances(run)[0])


def running_instances(run: Run) -> list[Instance]:
    """Returns the instances of the cluster that run, the master first.

    Raises:
        CloudError: no master runs.
    """
    hosts = instances(run.aws, run.owned, ["running"])
    if not hosts or hosts[0].role != "master":
        raise CloudError(
            f"cluster {run.cluster.name} has no running master; `launch` starts it, or "
            "`start_hosts` where `stop_hosts` has stopped it"
        )
    return hosts


def owners_hosts(run: Run) -> list[Host]:
    """Returns the hosts of all clusters of the owner."""
    return hosts_of(run, owners_instances(run.aws, run.owned.owner, ["running"]))


def hosts_of(run: Run, hosts: Sequence[Instance]) -> list[Host]:
    """Converts instances to hosts."""
    types_by_name = instance_types(run.aws, [host.type for host in hosts]) if hosts else {}
    return [
        replace(to_host(run, number, host),
                gpus=types_by_name[host.type].gpus if host.type in types_by_name else 0)
        for number, host in enumerate(hosts)
    ]  # fmt: skip


def to_host(run: Run, number: int, instance: Instance) -> Host:
    """Converts an instance to a host, without its GPUs; the master has number 0."""
    return Host(
        id=instance.id,
        alias=alias(number),
        role=instance.role,
        address=address(run, instance),
        inside=instance.private_ip or instance.id,
    )


def address(run: Run, instance: Instance) -> str:
    """Returns the address of a host as seen from here."""
    if run.cluster.through_sessions:
        return instance.id
    text = instance.private_ip if run.cluster.private_addresses else instance.public_ip
    if not text:
        raise ConfigError(
            f"{instance.id} has no public address; set private_addresses: yes if a "
            "VPN or bastion leads to it"
        )
    return text


def hosts_in_file(path: Path) -> list[Host]:
    """Reads hosts from a file: one HOST, HOST:PORT or [IPv6]:PORT per line, the master first."""
    try:
        texts = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--hostfile {path}: {error}") from error
    hosts = [from_line(path, words[0], number) for number, words in enumerate(filter(None, texts))]
    if not hosts:
        raise ConfigError(f"--hostfile {path}: it names no host")
    return hosts


def from_line(path: Path, word: str, number: int) -> Host:
    """Parses the first word of a line as a host."""
    match = LINE.fullmatch(f"[{word}]" if word.count(":") > 1 and "[" not in word else word)
    name = match[1].strip("[]") if match else ""
    if not match or ((":" in name or "[" in match[1]) and not is_address(name)):
        raise ConfigError(
            f"--hostfile {path}: {word!r} is not a host; write HOST, HOST:PORT or [IPv6]:PORT"
        )
    port = int(match[2] or 22)
    role = "worker" if number else "master"
    # A name that ssh_config resolves: MPI interprets colons in another way.
    inside = name if port == 22 and ":" not in name else alias(number)
    return Host(word, alias(number), role, name, inside, port, own=True)


def is_address(name: str) -> bool:
    """True if this is an IPv6 address.

    >>> is_address("fe80::1"), is_address("12:30")
    (True, False)
    """
    try:
        return bool(IPv6Address(name))
    except ValueError:
        return False


def inner_network(run: Run) -> str:
    """Returns the internal networks of the hosts as CIDRs with commas; empty: MPI chooses."""
    if run.options.hostfile:
        return ""
    subnets = dict.fromkeys(host.subnet for host in instances(run.aws, run.owned))
    return ",".join(find_subnet(run.aws, subnet, "").cidr for subnet in subnets)


def select(hosts: Sequence[Host], words: str) -> list[Host]:
    """Returns the hosts named by `all`, `master`, `workers`, or identifiers or aliases."""
    groups = {
        "all": list(hosts),
        "master": [host for host in hosts if host.role == "master"],
        "workers": [host for host in hosts if host.role != "master"],
    }
    if words in groups:
        return groups[words]
    names = {name: host for host in hosts
             for name in (host.id, host.alias, host.address, host.inside)}  # fmt: skip
    for word in words.split(","):
        if word not in names:
            selectable = [*groups, *(host.id for host in hosts), *(host.alias for host in hosts)]
            raise ConfigError(f"no host {word!r} in the cluster; {nearest(word, selectable)}")
    return [names[word] for word in words.split(",")]


def ssh_of(run: Run) -> Ssh:
    """Returns the parameters of ssh connections to hosts."""
    path, cluster = keyfile(run.cluster), run.cluster
    return Ssh(
        user=cluster.ssh_username,
        key=path if cluster.path_to_keyfile or path.exists() else None,
        known_hosts=cluster.state / "known_hosts",
        config=cluster.ssh_config,
        connect_timeout_s=cluster.connect_timeout,
        proxy=proxy_of(run),
    )


def proxy_of(run: Run) -> str:
    """Returns the ProxyCommand for hosts; empty if none is needed."""
    if not run.cluster.through_sessions or getattr(run.options, "hostfile", None):
        return ""
    require_programs()
    return proxy_command(run.cluster.region, run.options.endpoint_url)


def host_keys(run: Run, ssh: Ssh) -> HostKeys:
    """Returns the pinned host keys, with the source of new keys."""
    listed = getattr(run.options, "hostfile", None)  # `shutdown` has no such option
    return HostKeys(ssh, (lambda host: set()) if listed else console_keys(run.aws))
