"""Bootstrap: turns fresh hosts into a cluster that can train.

The user's private key stays on the user's machine. The master makes a key for the cluster. This
process copies that key to the other hosts in memory, over connections with pinned host keys.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.hosts.checkout import pack_files
from atomo_cluster.ec2.hosts.host_files import host_files
from atomo_cluster.ec2.hosts.host_keys import HostKeys
from atomo_cluster.ec2.hosts.progress import Steps
from atomo_cluster.ec2.hosts.shared_folder import SharedFolder
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh, host_label
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.terms import MASTER
from atomo_cluster.errors import RemoteError

__all__ = ["STEPS", "SetupContext", "bootstrap", "mount", "serve", "wait_until_reachable"]

STEPS: Final = ("reach", "code", "key", "join", "check", "shared folder", "environment", "setup",
                "links")  # fmt: skip
STEP_S: Final = 300.0
INSTALL_S: Final = 3600.0  # PyTorch is large
BETWEEN_S: Final = 5.0


@dataclass(frozen=True)
class SetupContext:
    """Inputs of bootstrap: settings, connections, hosts and the archive of the checkout."""

    cluster: Cluster
    ssh: Ssh
    keys: HostKeys
    hosts: tuple[Host, ...]  # the master first
    code: bytes  # tar.gz
    fused: bool  # hosts of EC2 must have a fuse
    wait_s: float  # longest wait for a host to accept ssh
    storage: SharedFolder | None = None  # the file system of AWS's that all hosts mount

    def script(self, host: Host, step: str, stdin: bytes = b"", timeout_s: float = STEP_S) -> str:
        """Runs a step of tools/remote_script.sh on a host."""
        command = f"bash {self.cluster.remote_dir}/tools/remote_script.sh {step}"
        return self.ssh.run(host, command, stdin, timeout_s).checked(step.split()[0])


def bootstrap(site: SetupContext, steps: Steps, fresh: Sequence[Host] | None = None) -> None:
    """Runs all steps that hosts need. It may be repeated at any time.

    With `fresh`, the other hosts only learn about the fresh hosts and skip the remaining steps.

    Raises:
        RemoteError: a step failed; the message names the hosts.
    """
    master, everyone = site.hosts[:1], site.hosts
    hosts_to_set_up = everyone if fresh is None else tuple(fresh)
    made: list[str] = []
    steps.on(hosts_to_set_up, "reach", lambda host: wait_until_reachable(site, host))
    steps.on(hosts_to_set_up, "code", lambda host: copy_code(site, host))
    steps.on(master, "key", lambda host: made.append(site.script(host, "key")))
    package = peer_files(site, made[0])
    steps.on(everyone, "join", lambda host: site.script(host, "join", package))
    steps.on(master, "check", lambda host: site.script(host, "check", targets(site)))
    steps.on(master, "shared folder", lambda host: serve(site, host))
    steps.on(hosts_to_set_up, "shared folder", lambda host: mount(site, host))
    steps.on(hosts_to_set_up, "environment", lambda host: install(site, host))
    steps.on(
        hosts_to_set_up, "setup", lambda host: run_commands(site, host, site.cluster.setup_commands)
    )


# Another boot script may hold the package manager's lock, or still have to write the fuse.
READY: Final = "! command -v cloud-init >/dev/null || cloud-init status --wait >/dev/null || true"


def wait_until_reachable(
    site: SetupContext, host: Host, pause: Callable[[float], None] = time.sleep
) -> None:
    """Waits until a host accepts ssh with the right host key and has finished its boot.

    Raises:
        RemoteError: the time is over, or the host key is wrong.
    """
    end = time.monotonic() + site.wait_s
    while True:
        answer = try_connect(site, host)
        if not answer.code:
            return
        complaint = answer.complaint()
        if time.monotonic() >= end or "somebody may be in between" in complaint:
            raise RemoteError(f"{host_label(host)}: {complaint}")
        pause(BETWEEN_S)


def try_connect(site: SetupContext, host: Host) -> Answer:
    """Tries once to connect."""
    if site.keys.pin(host) is None:
        return Answer(host, 255, "", "no answer within the scan of its host keys: timed out")
    return site.ssh.run(host, READY, timeout_s=site.ssh.connect_timeout_s + STEP_S)


def copy_code(site: SetupContext, host: Host) -> None:
    """Copies the checkout; files that exist only on the host stay."""
    folder = site.cluster.remote_dir
    command = f"mkdir -p {folder} && tar -xzf - -C {folder}"
    fuse = f" && bash {folder}/tools/remote_script.sh fuse" if site.fused else ""
    site.ssh.run(host, command + fuse, site.code, STEP_S).checked("copying the code")


def peer_files(site: SetupContext, key: str) -> bytes:
    """Packs the files that every host needs to reach the others, as tar."""
    files = {"key": key, **connections(site), "master": f"{site.hosts[0].inside}\n"}
    return pack_files(files | host_files([host.inside for host in site.hosts]))


def connections(site: SetupContext) -> dict[str, str]:
    """Writes the ssh_config and known_hosts files with which hosts reach each other."""
    blocks, key_lines = [], []
    for host in site.hosts:
        known_by_name = host.inside == host.alias  # a name that only this file resolves
        address = (host.address, host.port) if known_by_name else (host.inside, 22)
        blocks.append(
            f"Host {' '.join(dict.fromkeys((host.inside, host.alias)))}\n"
            f"  HostName {address[0]}\n  Port {address[1]}\n  HostKeyAlias {host.id}\n"
            f"  User {site.ssh.user}\n  IdentityFile KEY\n  IdentitiesOnly yes\n"
            "  UserKnownHostsFile KNOWN\n  StrictHostKeyChecking yes\n"
        )
        key_lines += [f"{host.id} {key}\n" for key in sorted(site.keys.pinned(host)[0])]
    return {"ssh_config": "".join(blocks), "known_hosts": "".join(key_lines)}


def targets(site: SetupContext) -> bytes:
    """Lists the hosts by the names that mpirun uses."""
    return "".join(f"{host.inside}\n" for host in site.hosts).encode()


def serve(site: SetupContext, master: Host) -> None:
    """Makes the master export the shared folder to the others, if the settings say so."""
    if site.cluster.nfs_ip_address == MASTER:
        words = (site.cluster.nfs_mount_point, site.cluster.out_dir)
        hosts = "".join(f"{host.inside}\n" for host in site.hosts[1:]).encode()
        site.script(master, f"serve {shlex.join(words)}", hosts, INSTALL_S)


def mount(site: SetupContext, host: Host) -> None:
    """Mounts the shared folder, if there is one; not on the master that exports it."""
    if site.storage:
        words = (site.storage.source, site.cluster.nfs_mount_point, site.cluster.out_dir)
        site.script(host, f"{site.storage.kind} {shlex.join(words)}", timeout_s=INSTALL_S)
        return
    cluster, own = site.cluster, site.cluster.nfs_ip_address == MASTER
    if cluster.nfs_ip_address and not (own and host == site.hosts[0]):
        address = site.hosts[0].inside if own else cluster.nfs_ip_address
        words = (address, cluster.nfs_mount_point, cluster.out_dir)
        site.script(host, f"nfs {shlex.join(words)}", timeout_s=INSTALL_S)


def install(site: SetupContext, host: Host) -> None:
    """Installs the environment and checks that PyTorch sees the GPUs of the host."""
    gpus = f" --gpu {host.gpus}" if host.gpus else ""
    command = f"bash {site.cluster.remote_dir}/tools/pre_run.sh{gpus}"
    site.ssh.run(host, command, timeout_s=INSTALL_S).checked("installing")


def run_commands(site: SetupContext, host: Host, commands: Sequence[str]) -> None:
    """Runs commands of the settings in the checkout, one after another."""
    if commands:
        lines = "\n".join([f"cd {site.cluster.remote_dir}", "set -e", *commands])
        site.ssh.run(host, lines, timeout_s=INSTALL_S).checked("a command of the settings")
