"""`upload`: copies a data set to the hosts."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.hosts.ssh import on_all_hosts
from atomo_cluster.ec2.hosts.transfer import send
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.selection import cluster_hosts, host_keys, ssh_of
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py upload ~/data/cifar10 data/cifar10
  pytorch_ec2.py upload ~/data/cifar10 /home/ubuntu/shared/cifar10

Copies a file, or the files of a folder, to a folder of every host, below the checkout unless it is
an absolute path; to a shared folder through the master alone, since all hosts see it. Files that
are there already are not sent again, and a large partial file continues. Nothing is deleted."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a file or folder here")
    parser.add_argument("folder", metavar="FOLDER", help="where to, on the hosts")
    add_hostfile(parser)


def run(run: Run) -> int:
    source, folder, cluster = run.options.source.expanduser(), run.options.folder, run.cluster
    if not source.exists():
        raise ConfigError(f"{source} does not exist")
    hosts = cluster_hosts(run)
    if cluster.shares and folder.startswith(f"{cluster.nfs_mount_point}/"):
        hosts = hosts[:1]
    target = folder if folder.startswith("/") else f"{cluster.remote_dir}/{folder}"
    ssh = ssh_of(run)
    keys = host_keys(run, ssh)
    for host in hosts:
        keys.pin(host)
    sent = on_all_hosts(hosts, lambda host: send(ssh, host, source, target, run.say))
    counts = {host.id: len(names) for host, names in zip(hosts, sent, strict=True)}
    run.say(f"{sum(counts.values())} files went to {len(hosts)} hosts; {folder} is complete there")
    run.tell({"sent": counts, "folder": target})
    return 0
