"""The state of a cluster, read from the kernel."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atomo_cluster.errors import Refused
from atomo_cluster.virtual.namespaces import Process, enter, first_holder, processes_inside
from atomo_cluster.virtual.programs import run
from atomo_cluster.virtual.spec import ClusterFolder, VirtualHost, rate_text

__all__ = ["HostStatus", "Status", "status", "table"]


@dataclass(frozen=True)
class HostStatus:
    """The state of one host."""

    name: str
    address: str
    state: str  # up, partitioned or killed
    rate: str | None
    sent_bytes: int  # over its link, with the headers of packets
    received_bytes: int
    processes: list[Process]  # but for its own sshd


@dataclass(frozen=True)
class Status:
    """The state of the cluster."""

    name: str
    hosts_address: str
    ssh_config: str
    shared: str
    latency_ms: float | None
    hosts: list[HostStatus]


def status(place: ClusterFolder) -> Status:
    """Reads the state of the cluster.

    Raises:
        Refused: the cluster is down.
    """
    cluster = place.load()
    switch = first_holder(place)
    if switch is None:
        raise Refused(
            f"the cluster {place.name!r} is down; `up` brings it up, `down` clears its files"
        )
    links = {
        link["ifname"]: link for link in run_in_switch(switch, "ip", "-j", "-s", "link", "show")
    }
    limits = {entry["dev"]: entry for entry in run_in_switch(switch, "tc", "-j", "qdisc", "show")}
    return Status(
        place.name,
        str(place.hosts_address),
        str(place.ssh_config),
        str(place.shared),
        cluster.latency_ms,
        [of_host(place, host, links.get(host.name), limits) for host in cluster.hosts],
    )


def run_in_switch(switch: int, program: str, *arguments: str) -> list[Mapping[str, Any]]:
    """Runs a program in the switch and returns its JSON output."""
    output = run(program, *arguments, before=lambda: enter(switch, "user", "net"))
    records: list[Mapping[str, Any]] = json.loads(output)
    return records


def of_host(
    place: ClusterFolder,
    host: VirtualHost,
    link: Mapping[str, Any] | None,
    limits: Mapping[str, Mapping[str, Any]],
) -> HostStatus:
    """Returns the state of one host; bytes received by its port are bytes that it sent."""
    pid = first_holder(place, host.name)
    if link is None or pid is None:
        return HostStatus(host.name, host.address, "killed", None, 0, 0, [])
    counted = link["stats64"]
    return HostStatus(
        host.name,
        host.address,
        "up" if "UP" in link["flags"] else "partitioned",
        rate_text(8 * limits[host.name]["options"]["rate"]),
        counted["rx"]["bytes"],
        counted["tx"]["bytes"],
        processes_inside(pid),
    )


def table(cluster_status: Status) -> str:
    """Formats the state as a table."""
    rows = [("host", "address", "state", "rate", "sent", "received", "processes")]
    rows += [
        (host.name, host.address, host.state, host.rate or "-", size_text(host.sent_bytes),
         size_text(host.received_bytes), str(len(host.processes)))
        for host in cluster_status.hosts
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def size_text(count: float) -> str:
    """Formats bytes in a suitable unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
