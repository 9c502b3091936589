"""The command line: the action of each command."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from atomo_cluster.errors import ClusterError, Refused
from atomo_cluster.virtual import lifecycle
from atomo_cluster.virtual.check import obstacles, owner
from atomo_cluster.virtual.console import execute
from atomo_cluster.virtual.host import run_host
from atomo_cluster.virtual.options import DEFAULT_NAME, clusters_folder, make_parser
from atomo_cluster.virtual.spec import (
    ClusterFolder,
    VirtualCluster,
    duration_ms,
    hosts_of,
    packet_bytes,
    rate_bits,
    rate_text,
)
from atomo_cluster.virtual.status import status, table
from atomo_cluster.virtual.switch import run_switch
from atomo_cluster.visible import visible

__all__ = ["main"]

INTERRUPTED = 130
Command = Callable[[argparse.Namespace, ClusterFolder, Path], int]


def main(words: Sequence[str], script: Path) -> int:
    """Runs one command and returns its exit code."""
    match words:  # internal commands: the processes of a cluster
        case ["switch", folder]:
            run_switch(ClusterFolder(Path(folder)), script)
            return 1
        case ["host", folder, name]:
            run_host(ClusterFolder(Path(folder)), name)
            return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `up` undoes its steps
    options = make_parser(script.parent.parent / "clusters").parse_args(words)
    try:
        place = ClusterFolder(Path(options.clusters).absolute() / options.name)
        code = COMMANDS[options.command](options, place, script)
        sys.stdout.flush()
        return code
    except ClusterError as error:
        print(f"virtual_cluster.py: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output is gone, as in `status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


def check(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Reports obstacles."""
    missing = obstacles()
    if options.json:
        print(json.dumps({"possible": not missing, "obstacles": missing}))
    else:
        print("\n".join(missing) or "a virtual cluster can run on this machine")
    return Refused.exit_code if missing else 0


def up(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Brings a cluster up and prints how to use it."""
    hosts, prefix_length = hosts_of(options.network, options.hosts)
    latency_ms = duration_ms(options.latency) if options.latency else None
    spec = VirtualCluster(
        hosts,
        prefix_length,
        rate_bits(options.rate),
        latency_ms,
        packet_bytes(options.mtu),
        owner(),
        options.own_homes,
    )
    made = lifecycle.up(place, spec, script)
    if made.latency_ms != spec.latency_ms:
        print(
            f"virtual_cluster.py: this kernel has no netem: --latency {options.latency} is left "
            "out, and packets take as long as this machine takes",
            file=sys.stderr,
        )
    if options.json:
        print(json.dumps(asdict(status(place))))
    else:
        print(instructions(place, made, script))
    return 0


def instructions(place: ClusterFolder, made: VirtualCluster, script: Path) -> str:
    """Returns the instructions for a cluster that is up."""
    selector = f" --name {place.name}" if place.name != DEFAULT_NAME else ""
    if place.folder.parent != clusters_folder(script.parent.parent / "clusters").absolute():
        selector += f" --clusters {relative(place.folder.parent)}"
    call = f"python3 {relative(script)}"
    hosts_address, shared = relative(place.hosts_address), relative(place.shared)
    return f"""\
{place.name}: {len(made.hosts)} hosts, h1 to h{len(made.hosts)}, {rate_text(made.rate_bits)} links
  train      {call} exec{selector} h1 bash run_pytorch.sh --hostfile {hosts_address}
  log in     ssh -F {relative(place.ssh_config)} h1
  share      {shared} (so is every other folder)
  take away  {call} down{selector}"""


def relative(path: Path) -> str:
    """Returns a path relative to the working folder, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def show(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Shows the state of the cluster."""
    cluster_status = status(place)
    print(json.dumps(asdict(cluster_status)) if options.json else visible(table(cluster_status)))
    return 0


def run(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Runs a command on a host."""
    command = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not command:
        raise Refused(f"exec {options.host}: the command is missing")
    cluster = place.load()
    host = cluster.host(options.host)
    return execute(place, cluster, host, lifecycle.first_process(place, host), command)


def partition(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Disconnects a host's link."""
    lifecycle.set_link(place, place.load().host(options.host), into=False)
    return 0


def heal(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Reconnects a host's link."""
    lifecycle.set_link(place, place.load().host(options.host), into=True)
    return 0


def throttle(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Changes the rate limit of a host's link."""
    cluster = place.load()
    lifecycle.throttle(place, cluster, cluster.host(options.host), rate_bits(options.rate))
    return 0


def kill(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Kills a host, like a power failure."""
    lifecycle.kill(place, place.load().host(options.host))
    return 0


def down(options: argparse.Namespace, place: ClusterFolder, script: Path) -> int:
    """Removes the cluster and reports the remaining files."""
    remaining = lifecycle.down(place, purge=options.purge)
    if options.json:
        print(json.dumps(asdict(remaining)))
        return 0
    print(
        f"{place.name}: "
        + ("down" if remaining.was_up else "was not up")
        + "; nothing is left of it"
    )
    if remaining.kept:
        print(
            f"  but for your files in {relative(Path(remaining.kept))} (--purge removes them too)"
        )
    return 0


COMMANDS: dict[str, Command] = {
    "check": check,
    "up": up,
    "status": show,
    "exec": run,
    "partition": partition,
    "heal": heal,
    "throttle": throttle,
    "kill": kill,
    "down": down,
}
