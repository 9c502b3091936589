"""The files that `up` writes: keys, configurations of ssh and sshd, and host lists."""

import os
import sys
from pathlib import Path

from atomo_cluster.errors import Refused
from atomo_cluster.plain_files import READABLE, replace_plain
from atomo_cluster.virtual.programs import find, run
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster

__all__ = ["SSH_PORT", "write_files"]

SSH_PORT = 22

SSHD = """\
Port {port}
ListenAddress {address}
HostKey {home}/host_key
AuthorizedKeysFile {ssh}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
UseDNS no
MaxStartups 100
AcceptEnv LANG LC_*
SetEnv TMPDIR={home}/tmp ATOMO_VENV={venv} ATOMO_INSTALL=no
Subsystem sftp internal-sftp
"""
SSH_HOST = """\
Host {name} {address}
  HostName {address}
  HostKeyAlias {address}
"""
SSH_ALL = """\
Host *
  IdentityFile {ssh}/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {ssh}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
"""
# From outside there is no route to a host; its sshd is reached through its console.
SSH_OUTSIDE = "  ProxyCommand {python} {script} exec --clusters {clusters} --name {cluster} {name} {sshd} -i -f {home}/sshd_config\n"  # noqa: E501
UNSAFE = set(" \t\n\"'%#\\$`;&|<>*?~!(){}[]")


def write_files(place: ClusterFolder, cluster: VirtualCluster, script: Path) -> None:
    """Writes the folder of a new cluster.

    Raises:
        Refused: the configuration of ssh cannot hold a path like that.
    """
    venv = Path(os.environ.get("ATOMO_VENV") or script.parent.parent / ".venv").absolute()
    for path in (place.folder, script, Path(sys.executable), venv):
        if UNSAFE & set(str(path)):
            raise Refused(f"{path}: ssh's configuration cannot hold this path; see --clusters")
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (place.ssh, place.shared):
        folder.mkdir(mode=0o700, exist_ok=True)
    place.save(cluster)
    write_hosts(place, cluster)
    write_keys(place, cluster)
    write_ssh(place, cluster, script)
    for host in cluster.hosts:
        home = place.of(host.name)
        text = SSHD.format(port=SSH_PORT, address=host.address, home=home, ssh=place.ssh, venv=venv)
        replace_plain(home / "sshd_config", text)


def write_hosts(place: ClusterFolder, cluster: VirtualCluster) -> None:
    """Writes the host lists: for run_pytorch.sh, and for name lookups."""
    addresses = "".join(f"{host.address}\n" for host in cluster.hosts)
    head = f"# The virtual cluster {place.name!r}: one host a line, the master's first.\n"
    replace_plain(place.hosts_address, head + addresses, READABLE)
    names = "".join(f"{host.address} {host.name}\n" for host in cluster.hosts)
    replace_plain(place.folder / "etc_hosts", f"127.0.0.1 localhost\n{names}", READABLE)


def write_keys(place: ClusterFolder, cluster: VirtualCluster) -> None:
    """Makes a key for the user of the cluster and one per host, used nowhere else."""
    user = make_key(place.ssh / "id_ed25519")
    replace_plain(place.ssh / "authorized_keys", user)
    lines = []
    for host in cluster.hosts:
        (place.of(host.name) / "tmp").mkdir(parents=True)
        public = make_key(place.of(host.name) / "host_key")
        lines.append(f"{host.address} {public}")
    replace_plain(place.ssh / "known_hosts", "".join(lines))


def make_key(path: Path) -> str:
    """Makes an ed25519 key; returns its public key."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtual cluster", "-f", path)
    return path.with_name(path.name + ".pub").read_text()


def write_ssh(place: ClusterFolder, cluster: VirtualCluster, script: Path) -> None:
    """Writes ssh_config files: one for hosts, over the network, and one for outside."""
    inside = outside = ""
    for host in cluster.hosts:
        entry = SSH_HOST.format(name=host.name, address=host.address)
        inside += entry
        outside += entry + SSH_OUTSIDE.format(
            python=sys.executable, script=script, clusters=place.folder.parent,
            cluster=place.name, name=host.name, sshd=find("sshd"), home=place.of(host.name),
        )  # fmt: skip
    everywhere = SSH_ALL.format(ssh=place.ssh)
    replace_plain(place.ssh / "config", inside + everywhere, READABLE)
    replace_plain(place.ssh_config, outside + everywhere, READABLE)
