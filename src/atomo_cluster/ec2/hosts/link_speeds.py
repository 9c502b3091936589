"""Throughput and latency of MPI over the links from the master, measured after set-up."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from atomo_cluster.ec2.hosts.setup import SetupContext
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.errors import RemoteError

__all__ = ["Link", "LinkMeasurement"]

LINKS_S: Final = 300.0
PAST: Final = 0.5  # of the bytes; the kernel sees fewer beside an adapter that goes past it


@dataclass(frozen=True)
class Link:
    """A link from the master to another host, as MPI sees it."""

    host: str  # alias
    us: float  # a short message, one way
    gbit_s: float  # long messages, one way
    kernel: float  # which part of the bytes went through the kernel, from 0 to 1

    @property
    def way(self) -> str:
        """The network path that MPI uses."""
        return "TCP" if self.kernel >= PAST else "past the kernel, as EFA does"


@final
class LinkMeasurement:
    """The measured links, or the reason why there is no measurement; hosts are ready either way."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.obstacle = ""

    def take(self, site: SetupContext, master: Host, network: str) -> None:
        """Measures on the master; `network` is the CIDR that MPI uses, or empty."""
        try:
            output = site.script(master, f"links {shlex.quote(network)}", timeout_s=LINKS_S)
            self.links = parsed(output, site.hosts)
        except (RemoteError, ValueError) as error:
            self.obstacle = str(error)

    def lines(self, hosts: Sequence[Host], efa: bool) -> list[str]:
        """Formats the links; `efa` is true if the settings ask for the adapter."""
        if self.obstacle:
            return [f"links were not measured: {self.obstacle}"]
        shown = [f"{link.host:24}{link.gbit_s:6.2f} Gbit/s  {link.us:6.0f} us  {link.way}"
                 for link in self.links]  # fmt: skip
        slow = any(link.kernel >= PAST for link in self.links)
        return ([f"MPI from {hosts[0].name} to"] if shown else []) + shown + (
            ["efa: yes, and MPI does not use it: it takes an MPI with libfabric, such as "
             "/opt/amazon/openmpi, and mpi4py built with that"] if efa and slow else []
        )  # fmt: skip


def parsed(output: str, hosts: Sequence[Host]) -> list[Link]:
    """Parses the output of measure_links.py; ranks are hosts in the order of `hosts`.

    Raises:
        ValueError: the output is malformed or incomplete.
    """
    links = []
    for line in (line for line in output.splitlines() if line.startswith("{")):
        try:
            record = json.loads(line)
            links.append(
                Link(hosts[record["rank"]].alias, record["us"], record["gbit_s"], record["kernel"])
            )
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a link: {line!r}") from error
    if len(links) < len(hosts) - 1:
        raise ValueError(f"{len(links)} of {len(hosts) - 1} links were measured")
    return links
