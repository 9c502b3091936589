"""The specification of a cluster, and the paths of its files."""

import ipaddress
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from atomo_cluster.errors import Refused
from atomo_cluster.plain_files import replace_plain

__all__ = [
    "ClusterFolder",
    "VirtualCluster",
    "VirtualHost",
    "duration_ms",
    "hosts_of",
    "packet_bytes",
    "rate_bits",
    "rate_text",
]

UNITS = {"gbit": 10**9, "mbit": 10**6, "kbit": 10**3}
LOWEST_BITS, HIGHEST_BITS = 64_000, 400 * 10**9
LONGEST_MS = 10_000.0
MTUS = range(576, 9217)


@dataclass(frozen=True)
class VirtualHost:
    """One host."""

    name: str
    address: str


@dataclass(frozen=True)
class VirtualCluster:
    """The specification of a cluster, stored in its folder."""

    hosts: tuple[VirtualHost, ...]
    prefix_length: int
    rate_bits: int  # per second, of each link and direction
    latency_ms: float | None  # one way between two hosts; None: the latency of the machine alone
    mtu: int  # bytes of a packet on the links
    # User and group of the processes in a user namespace; None: root, without a namespace.
    owner: tuple[int, int] | None
    own_homes: bool = False  # whether each host has a home folder of its own

    def host(self, name: str) -> VirtualHost:
        """Returns the host with this name or address."""
        for host in self.hosts:
            if name in (host.name, host.address):
                return host
        raise Refused(
            f"there is no host {name!r}; there are {', '.join(h.name for h in self.hosts)}"
        )


@dataclass(frozen=True)
class ClusterFolder:
    """The folder of a cluster. The files in `shared` belong to the user."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def record(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def hosts_address(self) -> Path:
        return self.folder / "hosts_address"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def ssh(self) -> Path:
        """The folder that replaces ~/.ssh on every host."""
        return self.folder / "ssh"

    def of(self, host: str) -> Path:
        """Returns the folder of one host."""
        return self.folder / "hosts" / host

    def save(self, cluster: VirtualCluster) -> None:
        """Writes the record."""
        replace_plain(self.record, json.dumps(asdict(cluster), indent=1) + "\n")

    def load(self) -> VirtualCluster:
        """Reads the record.

        Raises:
            Refused: there is none.
        """
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError:
            raise Refused(
                f"there is no cluster {self.name!r}{self._others()}; `up` makes one"
            ) from None
        hosts = tuple(VirtualHost(**host) for host in record.pop("hosts"))
        owner = record.pop("owner")
        return VirtualCluster(hosts=hosts, owner=owner and tuple(owner), **record)

    def _others(self) -> str:
        names = sorted(record.parent.name for record in self.folder.parent.glob("*/cluster.json"))
        return f", only {', '.join(names)} (see --name)" if names else ""


def hosts_of(network: str, count: int) -> tuple[tuple[VirtualHost, ...], int]:
    """Returns the first `count` hosts of a network, and the length of its prefix.

    >>> hosts_of("10.77.0.0/24", 2)[0][1]
    VirtualHost(name='h2', address='10.77.0.2')
    """
    try:
        addresses = ipaddress.IPv4Network(network)
    except ValueError as error:
        raise Refused(f"--network {network}: {error}; write e.g. 10.77.0.0/24") from error
    free = addresses.num_addresses - 2
    if not 1 <= count <= free:
        raise Refused(f"--hosts {count}: {network} has addresses for 1 to {free} hosts")
    hosts = (VirtualHost(f"h{number}", str(addresses[number])) for number in range(1, count + 1))
    return tuple(hosts), addresses.prefixlen


def rate_bits(text: str) -> int:
    """Parses a rate; returns bits per second.

    >>> rate_bits("100mbit")
    100000000
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(kbit|mbit|gbit)", text.lower())
    bits = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if not LOWEST_BITS <= bits <= HIGHEST_BITS:
        low, high = rate_text(LOWEST_BITS), rate_text(HIGHEST_BITS)
        raise Refused(f"rate {text!r}: write {low} to {high}, e.g. 100mbit or 2.5gbit")
    return bits


def rate_text(bits: int) -> str:
    """Formats a rate in bits per second.

    >>> rate_text(2_500_000_000)
    '2.5gbit'
    """
    unit = next((unit for unit, size in UNITS.items() if bits >= size), "kbit")
    return f"{bits / UNITS[unit]:g}{unit}"


def packet_bytes(mtu: int) -> int:
    """Checks the largest packet of a link, in bytes."""
    if mtu not in MTUS:
        raise Refused(f"--mtu {mtu}: {MTUS[0]} to {MTUS[-1]} bytes, e.g. 1500 or 9000")
    return mtu


def duration_ms(text: str) -> float:
    """Parses a duration; returns milliseconds.

    >>> duration_ms("10ms"), duration_ms("200us")
    (10.0, 0.2)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s)", text.lower())
    duration = float(match[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match[2]] if match else 0.0
    if not 0 < duration <= LONGEST_MS:
        raise Refused(f"--latency {text!r}: write e.g. 10ms or 200us, at most 10s")
    return duration
