"""Traffic of each communicator: how often a message crosses a link, and how many messages a rank
decodes.

All links are alike and full duplex. The workers of a host share its link; messages between workers
of a host do not cross that link. For a parameter server the master's link counts. To add a
communicator, add a function and a line in `EXCHANGES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

import numpy as np

from atomo.config.comm_types import PARAMETER_SERVER, REDUCTIONS

__all__ = ["EXCHANGES", "ExchangePattern", "Link"]


@final
@dataclass(frozen=True)
class Link:
    """The network link of one host."""

    bytes_per_s: float
    latency_s: float  # of a message, one way
    burst_bytes: float = 0.0
    """Bytes, once a step, that long messages send beyond their bandwidth."""
    shorter: tuple[tuple[float, float], ...] = ()
    """Bytes of a message, increasing, and the measured bytes a second of a message of that size.

    A message that fits into the queues of a link goes at its full speed. Of a longer message a part
    is dropped, and waits until TCP sends that part again; the bandwidth of long messages therefore
    says little about short messages.
    """
    rested_bytes: float = 0.0
    """Bytes that go faster in a direction that was idle for a while: the burst that a rate limit
    lets through.
    """

    @property
    def saved_s(self) -> float:
        """Seconds that a direction saves after it was idle."""
        return max(self.burst_bytes, self.rested_bytes) / self.bytes_per_s

    def at(self, size: int | float) -> "Link":
        """Returns the link as messages of `size` bytes see it: measured, or interpolated between
        sizes.
        """
        if not self.shorter or size >= self.shorter[-1][0]:
            return replace(self, shorter=())
        sizes, speeds = zip(*self.shorter, strict=True)
        byte_s = float(np.interp(size, sizes, [1 / speed for speed in speeds]))
        return Link(1 / byte_s, self.latency_s, rested_bytes=self.rested_bytes)


@final
@dataclass(frozen=True)
class ExchangePattern:
    """Traffic of one communicator among a number of workers."""

    crossings: int | float
    """Times that the bytes of a message cross the busiest link, in one direction."""
    latencies: int
    """Latencies that follow one another in each round of a message."""
    decodes: int
    """Messages that one rank decodes, its own included."""
    serves: bool = False
    """True if a master sends weights or gradients to the workers after it decoded all messages."""
    encodes_inline: bool = False
    """True if the thread of the backward pass encodes, which delays the pass by all of the encoding
    time. This holds for a worker with a single thread.
    """


def allgather(workers: int, per_host: int = 1) -> ExchangePattern:
    """Returns the traffic where each worker sends its message to every other."""
    return ExchangePattern(per_host * remote_workers(workers, per_host), 1, workers)


def allreduce(workers: int, per_host: int = 1) -> ExchangePattern:
    """Returns the traffic where each worker sums its part of all messages, and sends the sum to
    all.
    """
    return ExchangePattern(2 * per_host * remote_workers(workers, per_host) / workers, 2, 1)


def remote_workers(workers: int, per_host: int) -> int:
    """Returns the number of workers on other hosts."""
    return max(workers - per_host, 0)


def parameter_server(workers: int, per_host: int = 1) -> ExchangePattern:
    """Returns the traffic where all workers send to a master, which has a host of its own."""
    del per_host
    return ExchangePattern(workers, 1, workers, serves=True, encodes_inline=True)


EXCHANGES: Final[Mapping[str, Callable[[int, int], ExchangePattern]]] = MappingProxyType(
    {
        PARAMETER_SERVER: parameter_server,
        **{name: allgather if kind.gathers else allreduce for name, kind in REDUCTIONS.items()},
    }
)
"""Traffic by communicator, as a function of the number of workers in all and per host."""
