"""Where a rank stands in a job: which memory it has, if it has one."""

from dataclasses import dataclass
from typing import final

from atomo.communicators.hosts import Hosts

__all__ = ["Seat", "seat_in"]


@final
@dataclass(frozen=True)
class Seat:
    """A rank's numbers."""

    rank: int
    size: int
    """How many ranks there are."""
    memory: int
    """The number of the memory that this rank has, or another rank of its host."""
    memories: int
    """How many there are: one for each host."""
    keeps: bool
    """Whether it is this rank that has it."""


def seat_in(hosts: Hosts, rank: int) -> Seat:
    """A rank's seat: the first rank of each host has the memory.

    >>> seat_in(Hosts((0, 0, 2, 2)), 3)
    Seat(rank=3, size=4, memory=1, memories=2, keeps=False)
    """
    host = hosts.of[rank]
    return Seat(rank, len(hosts.of), sorted(set(hosts.of)).index(host), hosts.count, host == rank)
