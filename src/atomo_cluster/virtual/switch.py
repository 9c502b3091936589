"""The switch: the first process of a cluster, which starts the others and has the bridge."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from atomo_cluster.errors import ClusterError, Failed
from atomo_cluster.plain_files import open_plain
from atomo_cluster.virtual.links import port_ip, port_tc, switch_ip
from atomo_cluster.virtual.namespaces import unshare
from atomo_cluster.virtual.programs import batch, python
from atomo_cluster.virtual.reaper import detach, reap_for_ever
from atomo_cluster.virtual.spec import ClusterFolder, VirtualCluster, VirtualHost

__all__ = ["run_switch"]


def run_switch(place: ClusterFolder, script: Path) -> None:
    """Brings the cluster up, reports it on stdout, and keeps running once `up` confirms."""
    told_to_stay = threading.Event()
    threading.Thread(target=listen, args=(told_to_stay,), daemon=True).start()
    try:
        build(place, place.load(), script)
    except ClusterError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"error": None}), flush=True)
    told_to_stay.wait()  # unbounded: `listen` ends this process where `up` ends
    detach()
    reap_for_ever()


def listen(told_to_stay: threading.Event) -> None:
    """Ends everything if `up` ends before it has confirmed."""
    if sys.stdin.readline() != "stay\n":  # unbounded: the pipe closes where `up` ends
        os._exit(1)
    told_to_stay.set()


def build(place: ClusterFolder, cluster: VirtualCluster, script: Path) -> None:
    """Makes the bridge, then starts all hosts in parallel."""
    batch("ip", switch_ip())
    starting = [StartingHost(host, place, script) for host in cluster.hosts]
    for starting_host in starting:
        starting_host.hears("born")
        batch("ip", port_ip(starting_host.host, starting_host.process.pid, cluster.mtu))
        batch("tc", port_tc(starting_host.host, cluster.rate_bits))
        starting_host.tell("plugged in")
    for starting_host in starting:
        starting_host.hears("ready")


class StartingHost:
    """A starting host, with a pipe for lines in each direction."""

    def __init__(self, host: VirtualHost, place: ClusterFolder, script: Path) -> None:
        self.host = host
        self._log = place.of(host.name) / "log"
        with open_plain(self._log) as log:
            self.process = subprocess.Popen(
                [*unshare("net", "uts"), *python(script),
                 "host", place.folder, host.name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def tell(self, line: str) -> None:
        """Sends a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hears(self, line: str) -> None:
        """Waits for this line.

        Raises:
            Failed: another line arrived, or none.
        """
        assert self.process.stdout is not None
        # unbounded: each step of a host has a bound, and the pipe closes where the host ends
        read = self.process.stdout.readline().strip()
        if read != line:
            raise Failed(f"{self.host.name}: {read or self._log.read_text().strip() or 'it ended'}")
