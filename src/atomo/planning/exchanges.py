"""What each communicator makes of a message: how often it crosses a link, and who decodes how many.

All links are alike and carry as much in both directions at once; the workers of a host share its
link, and what they send to each other is not on it. Of a parameter server the master's link is the
one that counts. To add a communicator: a function and a line in `EXCHANGES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

import numpy as np

__all__ = ["EXCHANGES", "Exchange", "Link"]


@final
@dataclass(frozen=True)
class Link:
    """Of one host."""

    bytes_per_s: float
    latency_s: float  # of a message, one way
    burst_bytes: float = 0.0
    """By which long messages are ahead of their bandwidth, once a step."""
    shorter: tuple[tuple[float, float], ...] = ()
    """Bytes of a message, increasing, and the bytes a second that one so long was seen to have.

    A message that fits into the queues of a link goes at its speed. One that does not is dropped in
    part, and waits until TCP sends that again; so the bandwidth of long ones says little of it."""
    rested_bytes: float = 0.0
    """That go faster in a direction in which nothing went for a while: what the limit of a link
    lets through then."""

    @property
    def saved_s(self) -> float:
        """By which a direction is done earlier that has had a rest."""
        return max(self.burst_bytes, self.rested_bytes) / self.bytes_per_s

    def at(self, size: int | float) -> "Link":
        """The link as messages of so many bytes see it: as one that was measured, or in between."""
        if not self.shorter or size >= self.shorter[-1][0]:
            return replace(self, shorter=())
        sizes, speeds = zip(*self.shorter, strict=True)
        byte_s = float(np.interp(size, sizes, [1 / speed for speed in speeds]))
        return Link(1 / byte_s, self.latency_s, rested_bytes=self.rested_bytes)


@final
@dataclass(frozen=True)
class Exchange:
    """Of one communicator among so many workers."""

    crossings: int | float
    """How often the bytes of a message go through the busiest link, in one direction."""
    latencies: int
    """That follow one another, for each round of a message."""
    decodes: int
    """Messages of other workers, and one's own, that one rank decodes."""
    serves: bool = False
    """Whether weights or gradients come down from a master, once all is decoded."""
    encodes_between: bool = False
    """Whether the thread of the backward pass encodes, so that this delays it by all that it takes:
    a worker with one thread has no other."""


def gather(workers: int, per_host: int = 1) -> Exchange:
    """Each worker sends its message to every other."""
    return Exchange(per_host * elsewhere(workers, per_host), 1, workers)


def total(workers: int, per_host: int = 1) -> Exchange:
    """Each worker sums its part, from all, and sends the sum to all."""
    return Exchange(2 * per_host * elsewhere(workers, per_host) / workers, 2, 1)


def elsewhere(workers: int, per_host: int) -> int:
    """The workers on other hosts."""
    return max(workers - per_host, 0)


def server(workers: int, per_host: int = 1) -> Exchange:
    """All messages go to the master, which has a host of its own."""
    del per_host
    return Exchange(workers, 1, workers, serves=True, encodes_between=True)


EXCHANGES: Final[Mapping[str, Callable[[int, int], Exchange]]] = MappingProxyType(
    {
        "Bcast": server,
        "Allgather": gather,
        "Allreduce": total,
        "PowerSGD": total,
        "ACPSGD": total,
        "Chunked": total,
    }
)
"""By the name of the communicator, for a number of workers in all, and of those of a host."""
