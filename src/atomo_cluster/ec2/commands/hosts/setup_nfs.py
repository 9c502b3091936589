"""`setup_nfs`: mounts the shared folder on every host."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile, add_site, site_of
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.setup import copy_code, mount, serve, wait_until_reachable
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.survey import tell_cluster_place
from atomo_cluster.ec2.targets.selection import cluster_hosts
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py setup_nfs
  pytorch_ec2.py setup_nfs --nfs-ip-address 172.31.14.225

Mounts nfs_ip_address or storage at nfs_mount_point on every host, as `bootstrap` does too. Never
deletes anything: where the mount point has files in it, it stops."""


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)
    add_site(parser)


def run(run: Run) -> int:
    if not run.cluster.shares:
        raise ConfigError(
            "nfs_ip_address is empty; give storage, the address of an NFS server, or master"
        )
    tell_cluster_place(run)
    hosts = cluster_hosts(run)
    site = site_of(run, hosts)
    with Steps(hosts, ("reach", "code", "shared folder"), run.say) as steps:
        steps.on(hosts, "reach", lambda host: wait_until_reachable(site, host))
        steps.on(hosts, "code", lambda host: copy_code(site, host))
        steps.on(hosts[:1], "shared folder", lambda host: serve(site, host))
        steps.on(hosts, "shared folder", lambda host: mount(site, host))
    run.tell({"hosts": [host.id for host in hosts], "mounted": run.cluster.nfs_mount_point})
    return 0
