"""The life of a cluster: up, faults, down."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from atomo_cluster.errors import Failed, Refused
from atomo_cluster.plain_files import open_plain
from atomo_cluster.virtual.check import has_netem, obstacles
from atomo_cluster.virtual.files import write_files
from atomo_cluster.virtual.links import PORT, limit
from atomo_cluster.virtual.namespaces import end, enter, first_holder, holders, unshare
from atomo_cluster.virtual.programs import batch, python
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, VirtualHost

__all__ = ["DownResult", "down", "kill", "set_link", "throttle", "up"]

KILLED_S = 30.0  # for the end of a process that was killed


@dataclass(frozen=True)
class DownResult:
    """The result of `down`."""

    was_up: bool
    kept: str | None  # the shared folder, where there is something in it


def up(place: ClusterFolder, spec: VirtualCluster, script: Path) -> VirtualCluster:
    """Brings a cluster up and returns it; its latency is None if the kernel cannot delay packets.

    Raises:
        Refused: the cluster is already up, or this machine cannot run it.
        Failed: an error occurred; nothing of the cluster is left.
    """
    if missing := obstacles():
        raise Refused("; ".join(missing))
    cluster = spec if spec.latency_ms is None or has_netem() else replace(spec, latency_ms=None)
    with folder_lock(place):
        if first_holder(place):
            raise Refused(
                f"the cluster {place.name!r} is up already; `down` first, or give a --name"
            )
        clear(place, purge=False)  # of one that crashed
        try:
            write_files(place, cluster, script)
            start(place, cluster, script)
        except BaseException:  # Ctrl-C too
            end(holders(place))
            clear(place, purge=False)
            raise
    return cluster


def start(place: ClusterFolder, cluster: VirtualCluster, script: Path) -> None:
    """Starts the switch, which starts the hosts."""
    log = place.folder / "log"
    with open_plain(log) as out:
        process = subprocess.Popen(
            [*unshare("net", own_user=cluster.owner is not None), *python(script),
             "switch", place.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, cwd="/",
            start_new_session=True,  # Ctrl-C is for us alone, and for the cluster's life not at all
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    line = process.stdout.readline()  # unbounded: each step has a bound, and Ctrl-C ends all
    error = json.loads(line)["error"] if line else log.read_text().strip() or "the switch ended"
    if error:
        process.kill()
        process.wait(KILLED_S)
        raise Failed(f"cannot bring {place.name!r} up: {error}")
    process.stdin.write("stay\n")
    process.stdin.close()
    process.returncode = 0  # it is not ours to wait for any more


def down(place: ClusterFolder, *, purge: bool) -> DownResult:
    """Removes everything in whatever state; files in `shared` belong to the user and stay."""
    processes = holders(place)
    end(processes)  # before waiting for other processes: an `up` that hangs ends with its processes
    if place.folder.exists():
        with folder_lock(place):
            end(holders(place))
            clear(place, purge=purge)
    return DownResult(bool(processes), str(place.shared) if place.shared.exists() else None)


def clear(place: ClusterFolder, *, purge: bool) -> None:
    """Removes the files of a cluster that is down."""
    if not place.folder.exists():
        return
    keep = not purge and place.shared.exists() and any(place.shared.iterdir())
    for path in place.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if not (keep and path == place.shared):
                shutil.rmtree(path)
        else:
            path.unlink()
    if not keep:
        place.folder.rmdir()


@contextmanager
def folder_lock(place: ClusterFolder) -> Iterator[None]:
    """Locks this folder of clusters against other calls of `up` and `down`."""
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(place.folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def set_link(place: ClusterFolder, host: VirtualHost, *, into: bool) -> None:
    """Disconnects a host's link, or reconnects it; packets sent in between are silently lost."""
    first_process(place, host)
    in_switch(place, "ip", f"link set {host.name} {'up' if into else 'down'}")


def throttle(
    place: ClusterFolder, cluster: VirtualCluster, host: VirtualHost, rate_bits: int
) -> None:
    """Changes the rate limit of a host's link, in both directions."""
    inner = first_process(place, host)
    line = limit(PORT, rate_bits, delayed=cluster.latency_ms is not None)
    batch("tc", [line], before=lambda: enter(inner, "user", "net"))
    in_switch(place, "tc", limit(host.name, rate_bits, delayed=False))


def kill(place: ClusterFolder, host: VirtualHost) -> None:
    """Kills a host without a trace: its processes end, and no connection is closed."""
    first_process(place, host)
    # The link first: a dying process would close its connections, and the others would hear of it.
    in_switch(place, "ip", f"link del {host.name}")
    end(holders(place, host.name))


def first_process(place: ClusterFolder, host: VirtualHost) -> int:
    """Returns the first process of a host.

    Raises:
        Refused: the cluster is down, or this host was killed.
    """
    if first_holder(place) is None:
        raise Refused(f"the cluster {place.name!r} is down; `up` brings it up again")
    pid = first_holder(place, host.name)
    if pid is None:
        raise Refused(f"{host.name} was killed; `down`, then `up`, brings it back")
    return pid


def in_switch(place: ClusterFolder, program: str, line: str) -> None:
    """Runs a line of `ip` or `tc` in the namespace of the switch."""
    pid = first_holder(place)
    if pid is None:
        raise Refused(f"the cluster {place.name!r} is down; `up` brings it up again")
    batch(program, [line], before=lambda: enter(pid, "user", "net"))
