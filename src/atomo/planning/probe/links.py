"""Latency and bandwidth of a job's links, as each communicator uses them from all ranks at once.

Two large sizes are timed, which take a while, and shorter ones down to some kilobytes: messages
that fit into the queues on their way may be faster. The figures include headers, acknowledgements,
and cores that are busy with copies; so the effective bandwidth is below the link's nominal one.
"""

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Final, final

import numpy as np
import torch

from atomo.codecs import make_codec
from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.planning import EXCHANGES, Costs, Link
from atomo.planning.exchanges import ExchangePattern
from atomo.planning.prediction import HALF
from atomo.planning.probe.timer import SynchronizedTimer
from atomo.transports import Transport
from atomo.wire import Bytes

__all__ = ["LINKS", "links_for", "measure_links"]

SMALL_BYTES: Final = 256
SHORTEST_BYTES: Final = 8_000  # of the shortest message that shows a bandwidth
FIRST_BYTES: Final = 64_000
LARGEST_BYTES: Final = 16_000_000
LONG_S: Final = 0.3  # of the larger message at least, if it is not the largest; more => surer
TIMES: Final = 5
REST_S: Final = 0.1  # idle time after which a rate limit lets through its largest burst
SLOW_S: Final = 0.01  # of a message, from which on a burst after idle time is worth measuring
MOST_BURST_BYTES: Final = 32_000.0  # of a link; a larger value is noise
GATHERS: Final = "Allgather"
SUMS: Final = tuple(name for name in COMM_TYPES if name not in (PARAMETER_SERVER, GATHERS))
SUMMED: Final = (*SUMS, *(HALF + name for name in SUMS))
LINKS: Final = (PARAMETER_SERVER, GATHERS, *SUMMED)
"""All names in `Scenario.measured`."""
SHORTEST_S: Final = 1e-9  # of a byte; a clock may show no time at all
WHAT: Final = "a probe of the links"

Send = Callable[[int, int], None]
"""Exchanges messages: bytes of each, and their number. All are under way at once where the
communicator works so.
"""


def measure_links(
    timer: SynchronizedTimer,
    transport: Transport,
    timeout_s: float,
    names: Sequence[str] = LINKS,
    *,
    under_way: int = 1,
    most_bytes: int = LARGEST_BYTES,
) -> Mapping[str, Link]:
    """Measures links by their names in `Scenario.measured`; the result is the same on all ranks.

    Args:
        timer: the ranks.
        transport: connects the ranks.
        timeout_s: the longest wait for one of them.
        names: the links to measure, of `LINKS`; the same on all ranks.
        under_way: number of messages at once that share a latency.
        most_bytes: of a message of the job; longer messages are not tried.

    Returns:
        The links; none if there is one rank.
    """
    if transport.size < 2:
        return MappingProxyType({})
    link_timer = LinkTimer(
        timer.slowest_s, under_way, min(LARGEST_BYTES, max(FIRST_BYTES, most_bytes))
    )
    collective = timer.collective
    sends: dict[str, Send] = {
        PARAMETER_SERVER: partial(serve, transport, timeout_s),
        GATHERS: partial(gather, collective),
        **dict.fromkeys(SUMS, partial(add_up, collective, "sgd")),
        **dict.fromkeys((HALF + name for name in SUMS), partial(add_up, collective, "bf16")),
    }
    links: dict[Send, Link] = {}  # all communicators that sum share a link
    for name in names:
        if sends[name] not in links:
            workers = transport.size - (name == PARAMETER_SERVER)
            exchange = EXCHANGES[name.removeprefix(HALF)](workers, 1)
            links[sends[name]] = link_timer.link(exchange, sends[name])
    return MappingProxyType({name: links[sends[name]] for name in names})


def links_for(comm_types: Collection[str], costs: Collection[Costs]) -> list[str]:
    """Returns the names in `LINKS` of the links that these communicators use at such costs."""
    halves = {cost.half for cost in costs}
    return [
        name
        for name in LINKS
        if name.removeprefix(HALF) in comm_types
        and (name not in SUMMED or name.startswith(HALF) in halves)
    ]


@final
@dataclass(frozen=True)
class LinkTimer:
    """A timer of messages between all ranks."""

    taken_s: Callable[[Callable[[], object]], float]
    """Returns seconds until the last rank is done with work."""
    under_way: int
    most_bytes: int

    def link(self, exchange: ExchangePattern, send: Send) -> Link:
        """Fits a link to the measured times of this communicator's messages."""
        small_s = self._typical_s(send, SMALL_BYTES, self.under_way) / self.under_way
        size = self._large(send)
        half_s, whole_s = (self._typical_s(send, n, 1) for n in (size // 2, size))
        byte_s = max(SHORTEST_S, 2 * (whole_s - half_s) / size)
        # The slope of two sizes should give the larger one's time, or nearly. If noise makes it far
        # off, the longer time alone is surer.
        if not 0.8 < byte_s * size / whole_s < 1.3:
            byte_s = max(SHORTEST_S, whole_s - small_s) / size
        ahead = (small_s + byte_s * size - whole_s) / byte_s  # bytes that took no time
        burst = min(exchange.crossings * max(0.0, ahead), MOST_BURST_BYTES)
        taken_s = {size: whole_s, size // 2: half_s}
        shorter = self._shorter(exchange, send, taken_s)
        rested = min(exchange.crossings * self._rested_s(send) / byte_s, MOST_BURST_BYTES)
        speed = exchange.crossings / byte_s
        return Link(speed, small_s / exchange.latencies, burst, shorter, rested)

    def _rested_s(self, send: Send) -> float:
        """Returns the seconds that a message saves after idle time."""

        def rest() -> None:
            time.sleep(REST_S)

        busy_s = self._typical_s(send, FIRST_BYTES, 1)
        if busy_s < SLOW_S:
            return 0.0
        return max(0.0, busy_s - self._typical_s(send, FIRST_BYTES, 1, rest))

    def _shorter(
        self, exchange: ExchangePattern, send: Send, taken_s: dict[int, float]
    ) -> tuple[tuple[float, float], ...]:
        """Returns the bytes and the bandwidth of shorter messages, and of those timed before.

        A message whose time is mostly latency shows no bandwidth, and is left out.
        """
        alone_s = self._typical_s(send, SMALL_BYTES, 1)
        size = min(taken_s) // 2
        while size >= SHORTEST_BYTES:
            taken_s[size] = self._typical_s(send, size, 1)
            size //= 4
        return tuple(
            (float(size), exchange.crossings * size / (taken - alone_s))
            for size, taken in sorted(taken_s.items())
            if taken > 2 * alone_s + SHORTEST_S
        )

    def _large(self, send: Send) -> int:
        """Returns the bytes of a message that takes `LONG_S`, or of the longest."""
        size, most = FIRST_BYTES, self.most_bytes
        while (taken := self.taken_s(partial(send, size, 1))) < LONG_S and size < most:
            size = min(most, size * (8 if taken < LONG_S / 8 else 2))
        return size

    def _typical_s(
        self, send: Send, size: int, count: int, before: Callable[[], None] = lambda: None
    ) -> float:
        """Returns the median seconds of several exchanges; calls `before` before each."""

        def taken_s() -> float:
            before()
            return self.taken_s(partial(send, size, count))

        return statistics.median(taken_s() for _ in range(TIMES))


def gather(collective: Collective, size: int, count: int) -> None:
    """Sends as `Allgather` sends frames."""
    for arriving in [collective.gather(zeros(size), WHAT) for _ in range(count)]:
        for _ in arriving:
            pass


def add_up(collective: Collective, spec: str, size: int, count: int) -> None:
    """Sums as `Allreduce` does, in this codec's data type: one sum after another."""
    carrier = make_codec(spec)
    entries = size // carrier.fields(torch.Size([1]))[0].dtype.itemsize
    for _ in range(count):
        collective.sum([Addend(torch.zeros(entries), carrier)], WHAT)


def serve(transport: Transport, timeout_s: float, size: int, count: int) -> None:
    """Sends as the workers of a parameter server send to the master, which then ends the step."""
    if transport.rank:
        for _ in range(count):
            transport.send(0, zeros(size), WHAT)
        transport.receive(0, timeout_s, WHAT)
        return
    for _ in range(count * (transport.size - 1)):
        transport.receive(None, timeout_s, WHAT)
    for worker in range(1, transport.size):
        transport.send(worker, zeros(1), WHAT)
    transport.drain(timeout_s)


@cache
def zeros(size: int) -> Bytes:
    """Returns bytes that are allocated once."""
    return np.zeros(size, np.uint8)
