"""Hosts and rails: which ranks share a host, and which ranks exchange between hosts.

Each host has as many rails as the smallest host has ranks. In rail l, the l-th ranks of all hosts
exchange the compressed sums of their hosts. Each bucket is in one rail. So several ranks of a host
encode, send and decode, each rank different buckets, and the rank that compresses a bucket has the
memory of that bucket.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.fusion import Bucket
from atomo.options.hierarchy import BY_NAME, FLAT

__all__ = ["Hosts", "find_hosts", "host_names", "hosts_named", "least_loaded", "rails_of"]


@final
@dataclass(frozen=True)
class Hosts:
    """The host of each rank, named by the lowest rank on that host."""

    of: tuple[int, ...]
    """By rank. (0, 1, 2, ...): each rank is on a host of its own."""

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(set(self.of))

    @property
    def rails(self) -> int:
        """The number of rails: the number of ranks of the smallest host."""
        return min(map(self.of.count, self.of))

    @property
    def flat(self) -> bool:
        """True if each rank is on a host of its own."""
        return self.count == len(self.of)

    def ranks_beside(self, rank: int) -> list[int]:
        """Lists all ranks of the host of a rank, in order."""
        return [other for other, host in enumerate(self.of) if host == self.of[rank]]

    def rail(self, number: int) -> list[int]:
        """Lists the ranks of a rail: one of each host."""
        return [self.ranks_beside(first)[number] for first in sorted(set(self.of))]


def find_hosts(hierarchy: str, collective: Collective) -> Hosts:
    """Finds the hosts of a job; all ranks call it together.

    Args:
        hierarchy: the option, as `canonical_hierarchy` returns it.
        collective: the collective of all ranks.

    Raises:
        ConfigError: all ranks are on one host, so that there is nothing to compress.
    """
    if hierarchy == FLAT:
        return Hosts(tuple(range(collective.size)))
    if hierarchy != BY_NAME:
        hosts = Hosts(tuple(rank - rank % int(hierarchy) for rank in range(collective.size)))
        if hosts.count == 1 < collective.size:
            raise ConfigError(
                f"--hierarchical {hierarchy}: {collective.size} ranks are then one host, and "
                f"nothing is compressed; give at most {collective.size - 1} ranks for a host, or no"
            )
        return hosts
    return hosts_named(host_names(collective))


def host_names(collective: Collective) -> list[bytes]:
    """Gathers the name of each rank's host."""
    name = np.frombuffer(socket.gethostname().encode() or b"?", np.uint8)
    return [gathered.tobytes() for gathered in collective.gather(name, "the name of the host")]


def hosts_named(names: Sequence[bytes]) -> Hosts:
    """Groups ranks by the names of their hosts.

    Raises:
        ConfigError: all ranks have the same host name.
    """
    hosts = Hosts(tuple(names.index(name) for name in names))
    if hosts.count == 1 < len(names):
        raise ConfigError(
            f"--hierarchical yes compresses between hosts, and all {len(names)} ranks are on "
            f"{names[0].decode(errors='replace')}; leave it out, or give how many ranks are to "
            "count as one host"
        )
    return hosts


def rails_of(buckets: Sequence[Bucket], rails: int) -> list[int]:
    """Returns the rail of each bucket."""
    return least_loaded([bucket.size for bucket in buckets], rails)


def least_loaded(sizes: Sequence[int], rails: int) -> list[int]:
    """Assigns each size to the rail with the smallest sum of sizes so far."""
    loads, chosen = [0] * rails, []
    for size in sizes:
        rail = loads.index(min(loads))
        loads[rail] += size
        chosen.append(rail)
    return chosen
