"""A host: the first process of its namespaces, which configures them and starts the sshd."""

import os
import pwd
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from atomo_cluster.errors import ClusterError, Failed
from atomo_cluster.plain_files import open_plain, replace_plain
from atomo_cluster.virtual.files import SSH_PORT
from atomo_cluster.virtual.homes import mount_home
from atomo_cluster.virtual.links import host_ip, host_tc
from atomo_cluster.virtual.programs import batch, find, run
from atomo_cluster.virtual.reaper import detach, reap_for_ever
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, VirtualHost

__all__ = ["as_owner", "run_host"]

PATIENCE_S = 30.0  # for an sshd to listen
POLL_S = 0.01
PRIVILEGE_SEPARATION = Path("/run/sshd")  # an empty folder that a root's sshd insists on
SHADOW = Path("/etc/shadow")


def run_host(place: ClusterFolder, name: str) -> None:
    """Starts a host in the steps that the switch commands, and keeps it running."""
    print("born", flush=True)
    if not sys.stdin.readline():  # unbounded: the pipe closes where the switch ends
        return
    cluster = place.load()
    try:
        build(place, cluster, cluster.host(name))
    except (ClusterError, OSError, KeyError) as error:
        print(error, flush=True)
        return
    print("ready", flush=True)
    detach()
    reap_for_ever()


def build(place: ClusterFolder, cluster: VirtualCluster, host: VirtualHost) -> None:
    """Sets up host name, network, files and sshd."""
    socket.sethostname(host.name)
    batch("ip", host_ip(host, cluster.prefix_length))
    batch("tc", host_tc(cluster.rate_bits, cluster.latency_ms))
    mount_files(place, cluster, host)
    if cluster.owner:
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    else:
        prepare_for_root(place)
    start_sshd(place, cluster, host)


def mount_files(place: ClusterFolder, cluster: VirtualCluster, host: VirtualHost) -> None:
    """Mounts the files that differ between hosts, or must differ from this machine's."""
    run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # else ranks on two hosts could share memory
    run("mount", "--bind", place.folder / "etc_hosts", "/etc/hosts")
    home = Path(pwd.getpwuid(cluster.owner[0] if cluster.owner else 0).pw_dir)
    system = Path("/etc/ssh/ssh_config")
    targets = [(place.ssh / "config", system)]
    if cluster.own_homes:
        mount_home(place, host.name, home)
    else:
        targets.append((place.ssh, home / ".ssh"))
    mounts = [(source, target) for source, target in targets if target.exists()]
    if not mounts:
        raise Failed(f"ssh would find its configuration nowhere: make {home}/.ssh or {system}")
    for source, target in mounts:
        run("mount", "--bind", source, target)


def prepare_for_root(place: ClusterFolder) -> None:
    """Prepares an sshd that runs as root: it needs a folder, and an unlocked account."""
    if not PRIVILEGE_SEPARATION.exists():
        run("mount", "-t", "tmpfs", "tmpfs", PRIVILEGE_SEPARATION.parent)
        PRIVILEGE_SEPARATION.mkdir(mode=0o755)
    lines = SHADOW.read_text().splitlines() if SHADOW.exists() else []
    if any(line.startswith("root:!") for line in lines):
        unlocked = place.folder / "etc_shadow"  # no password, and none that would fit
        replace_plain(unlocked, "root:*:20000:0:99999:7:::\n")
        run("mount", "--bind", unlocked, SHADOW)


def as_owner(cluster: VirtualCluster) -> list[str]:
    """Returns the command prefix that maps root of the namespace back to the user."""
    if cluster.owner is None:
        return []
    user, group = cluster.owner
    return [find("unshare") or "unshare", "--user", f"--map-user={user}", f"--map-group={group}"]


def start_sshd(place: ClusterFolder, cluster: VirtualCluster, host: VirtualHost) -> None:
    """Starts the sshd and waits until it listens."""
    sshd = find("sshd") or "sshd"  # by its full path: it starts itself again for a connection
    config = place.of(host.name) / "sshd_config"
    log = place.of(host.name) / "sshd.log"
    with open_plain(log) as out:
        command = [*as_owner(cluster), sshd, "-D", "-e", "-f", str(config)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            cwd="/", env={**os.environ, "TMPDIR": str(place.of(host.name) / "tmp")},
        )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while not listens(host.address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"its sshd does not listen: {' '.join(log.read_text().split())}")
        time.sleep(POLL_S)


def listens(address: str) -> bool:
    """True if the sshd accepts connections at this address."""
    with suppress(OSError), socket.create_connection((address, SSH_PORT), timeout=1.0):
        return True
    return False
