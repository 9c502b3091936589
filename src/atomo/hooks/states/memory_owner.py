"""The place of a rank in a job, and the memory that it owns."""

from dataclasses import dataclass
from typing import final

from atomo.exchange.collectives.hosts import Hosts

__all__ = ["MemoryOwner", "owner_of"]


@final
@dataclass(frozen=True)
class MemoryOwner:
    """A rank's numbers."""

    rank: int
    size: int
    """Number of ranks."""
    memory: int
    """The number of the memory that this rank has, or another rank of its host."""
    memories: int
    """Number of memories: one for each host."""
    keeps: bool
    """True if this rank has the memory, and not another of its host."""


def owner_of(hosts: Hosts, rank: int) -> MemoryOwner:
    """Returns the place of a rank: the first rank of each host owns the memory.

    >>> owner_of(Hosts((0, 0, 2, 2)), 3)
    MemoryOwner(rank=3, size=4, memory=1, memories=2, keeps=False)
    """
    host = hosts.of[rank]
    return MemoryOwner(
        rank, len(hosts.of), sorted(set(hosts.of)).index(host), hosts.count, host == rank
    )
