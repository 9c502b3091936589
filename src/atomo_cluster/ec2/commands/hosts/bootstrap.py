"""`bootstrap`: turns fresh hosts into a cluster that can train."""

from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.hosts.checkout import checkout, pack_checkout
from atomo_cluster.ec2.hosts.keys import require_program
from atomo_cluster.ec2.hosts.link_speeds import Link, LinkMeasurement
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.setup import STEPS, SetupContext, bootstrap
from atomo_cluster.ec2.hosts.shared_folder import SharedFolder, shared_folder_of
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.selection import cluster_hosts, host_keys, inner_network, ssh_of
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py bootstrap
  pytorch_ec2.py bootstrap --wait 600
  pytorch_ec2.py bootstrap --hostfile machines --name lab --ssh-username me

Waits for the hosts, pins their host keys, copies this checkout, makes a key of the cluster's own,
mounts the shared folder and installs the environment, on all hosts in parallel. Then it measures
the links with MPI. May be run again at any time; it deletes nothing. --hostfile takes
any hosts with ssh: one HOST or HOST:PORT a line."""


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)
    add_site(parser)
    parser.add_argument("--master", default="", metavar="ADDRESS",
                        help="stop unless this is the master's address")  # fmt: skip


def add_hostfile(parser: ArgumentParser) -> None:
    parser.add_argument("--hostfile", type=Path, default=None, metavar="FILE",
                        help="these hosts instead of the cluster's; asks AWS nothing")  # fmt: skip


def add_site(parser: ArgumentParser) -> None:
    parser.add_argument("--source", type=Path, default=None, metavar="FOLDER",
                        help="the checkout to copy (default: this one)")  # fmt: skip
    parser.add_argument("--wait", type=float, default=300.0, metavar="SECONDS",
                        help="longest wait for a host to accept ssh (default 300)")  # fmt: skip


def run(run: Run) -> int:
    hosts = cluster_hosts(run)
    expect(run.options.master, hosts[0])
    links = set_up(run, hosts)
    run.tell({"hosts": [vars(host) for host in hosts], "links": [asdict(link) for link in links]})
    return 0


def expect(address: str, master: Host) -> None:
    """Raises ConfigError if the master has another address than the caller expects."""
    if address and address not in (master.address, master.inside, master.id):
        raise ConfigError(f"{address} is not the master of the cluster; that is {master.address}")


def site_of(run: Run, hosts: list[Host]) -> SetupContext:
    """Builds the inputs of bootstrap."""
    require_program("ssh"), require_program("ssh-keyscan")
    ssh = ssh_of(run)
    return SetupContext(
        cluster=run.cluster,
        ssh=ssh,
        keys=host_keys(run, ssh),
        hosts=tuple(hosts),
        code=pack_checkout(checkout(run.options.source)),
        fused=run.options.hostfile is None,
        wait_s=run.options.wait,
        storage=storage_of(run),
    )


def storage_of(run: Run) -> SharedFolder | None:
    """Returns the shared file system of AWS; hosts of --hostfile cannot have one."""
    if run.options.hostfile and run.cluster.storage:
        raise ConfigError(f"storage {run.cluster.storage!r} is for hosts of EC2; --hostfile takes "
                          "nfs_ip_address")  # fmt: skip
    return shared_folder_of(run.aws, run.cluster) if run.cluster.storage else None


def set_up(run: Run, hosts: list[Host]) -> list[Link]:
    """Runs every step on every host and returns the measured links."""
    site, links, network = site_of(run, hosts), LinkMeasurement(), inner_network(run)
    with Steps(hosts, STEPS, run.say) as steps:
        bootstrap(site, steps)
        steps.on(hosts[: len(hosts) > 1], "links", lambda host: links.take(site, host, network))
    for line in links.lines(hosts, run.cluster.efa):
        run.say(line)
    run.say(f"{len(hosts)} hosts are ready; next: `pytorch_ec2.py train`")
    return links.links
