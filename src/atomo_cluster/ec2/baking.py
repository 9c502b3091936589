"""Hosts to images: the choice of hosts, and the removal of cluster data from their disks."""

from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.catalogue import Machine, machines
from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh, everywhere
from atomo_cluster.ec2.hosts.user_data import LIBRARY, write
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.settings.terms import MASTER

__all__ = ["one_of_each", "scrub"]

SCRUB_S: Final = 120.0


def one_of_each(run: Run, hosts: Sequence[Instance]) -> list[tuple[Instance, Machine]]:
    """Picks one host per kind of image: processor architecture, with or without GPUs.

    Prefers workers to the master, which has jobs and results, and later hosts to earlier ones.
    """
    known = machines(run.aws, [one.type for one in hosts])
    ordered = sorted(hosts, key=lambda one: one.role != MASTER)  # the last of a kind is taken
    kinds = {(known[one.type].architecture, known[one.type].gpus > 0): one for one in ordered}
    return [(one, known[one.type]) for one in kinds.values()]


def scrub(ssh: Ssh, hosts: Sequence[Host], checkout: str) -> list[Answer]:
    """Removes from hosts the data that other hosts must not have; the fuses of the hosts stay."""
    fuse = write(f"{LIBRARY}/fuse.sh", (SCRIPTS / "fuse.sh").read_text())
    marked = f'{fuse}\nexec bash "$ATOMO_ROOT{LIBRARY}/fuse.sh" 0\n'.encode()
    script = (SCRIPTS / "scrub.sh").read_bytes()

    def one(host: Host) -> Answer:
        answer = ssh.run(host, "sudo -n bash -s", marked, SCRUB_S)
        return answer if answer.code else ssh.run(host, f"bash -s -- {checkout}", script, SCRUB_S)

    return everywhere(hosts, one)
