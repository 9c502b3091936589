"""Which rank is on which host, and which ranks exchange what between hosts.

Each host has as many lanes as the smallest host has ranks. In lane l the l-th ranks of all hosts
exchange with each other, compressed, what their hosts have summed. Each bucket is in one lane, so
that several ranks of a host encode, send and decode, each other buckets, and a bucket's memory is
where it is compressed.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from atomo.communicators.collective import Collective
from atomo.errors import ConfigError
from atomo.fusion import Bucket
from atomo.hierarchy import BY_NAME, FLAT

__all__ = ["Hosts", "find_hosts", "host_names", "hosts_named", "lanes_of", "least_loaded"]


@final
@dataclass(frozen=True)
class Hosts:
    """The host of each rank, by the first of its ranks: a host each where they are 0, 1, 2..."""

    of: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many hosts there are."""
        return len(set(self.of))

    @property
    def lanes(self) -> int:
        """How many ranks the smallest host has."""
        return min(map(self.of.count, self.of))

    @property
    def flat(self) -> bool:
        """Whether each rank is on a host of its own."""
        return self.count == len(self.of)

    def ranks_beside(self, rank: int) -> list[int]:
        """All ranks of the host of one of them, in order."""
        return [other for other, host in enumerate(self.of) if host == self.of[rank]]

    def lane(self, number: int) -> list[int]:
        """The ranks of a lane: one of each host."""
        return [self.ranks_beside(first)[number] for first in sorted(set(self.of))]


def find_hosts(said: str, collective: Collective) -> Hosts:
    """The hosts of a job, which all ranks find together.

    Args:
        said: as `canonical_hierarchy` returns it.
        collective: all ranks.

    Raises:
        ConfigError: all ranks are on one host, so that there is nothing to compress.
    """
    if said == FLAT:
        return Hosts(tuple(range(collective.size)))
    if said != BY_NAME:
        hosts = Hosts(tuple(rank - rank % int(said) for rank in range(collective.size)))
        if hosts.count == 1 < collective.size:
            raise ConfigError(
                f"--hierarchical {said}: {collective.size} ranks are then one host, and nothing is "
                f"compressed; give at most {collective.size - 1} ranks for a host, or no"
            )
        return hosts
    return hosts_named(host_names(collective))


def host_names(collective: Collective) -> list[bytes]:
    """The name of each rank's host, which all ranks tell each other."""
    mine = np.frombuffer(socket.gethostname().encode() or b"?", np.uint8)
    return [one.tobytes() for one in collective.gather(mine, "the name of the host")]


def hosts_named(names: Sequence[bytes]) -> Hosts:
    """The hosts of ranks on hosts of these names.

    Raises:
        ConfigError: all have the same.
    """
    hosts = Hosts(tuple(names.index(name) for name in names))
    if hosts.count == 1 < len(names):
        raise ConfigError(
            f"--hierarchical yes compresses between hosts, and all {len(names)} ranks are on "
            f"{names[0].decode(errors='replace')}; leave it out, or give how many ranks are to "
            "count as one host"
        )
    return hosts


def lanes_of(buckets: Sequence[Bucket], lanes: int) -> list[int]:
    """The lane of each bucket."""
    return least_loaded([bucket.size for bucket in buckets], lanes)


def least_loaded(sizes: Sequence[int], lanes: int) -> list[int]:
    """The lane of each size: the one whose sum of sizes is least by then."""
    loads, chosen = [0] * lanes, []
    for size in sizes:
        lane = loads.index(min(loads))
        loads[lane] += size
        chosen.append(lane)
    return chosen
