"""Latency and bandwidth of a job's links, for each communicator, while all ranks send.

Two large messages are timed, which take a while, and shorter messages down to some kilobytes:
messages that fit into the queues of the network may be faster. The figures include headers,
acknowledgements, and cores that are busy with copies; so the effective bandwidth is below the
link's nominal bandwidth.
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
LONG_S: Final = 0.3  # minimum time of the larger message, unless it has LARGEST_BYTES
TIMES: Final = 5
REST_S: Final = 0.1  # idle time after which a rate limit lets through its largest burst
SLOW_S: Final = 0.01  # shortest message time at which a burst after idle time is measured
MOST_BURST_BYTES: Final = 32_000.0  # of a link; a larger value is noise
GATHERS: Final = "Allgather"
SUMS: Final = tuple(name for name in COMM_TYPES if name not in (PARAMETER_SERVER, GATHERS))
SUMMED: Final = (*SUMS, *(HALF + name for name in SUMS))
LINKS: Final = (PARAMETER_SERVER, GATHERS, *SUMMED)
"""All names in `Scenario.measured`."""
SHORTEST_S: Final = 1e-9  # of a byte; a clock may show zero
WHAT: Final = "a probe of the links"

Send = Callable[[int, int], None]
"""Exchanges messages: bytes of each, and their number. The messages overlap if the communicator
allows that.
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
        timeout_s: the longest wait for a rank.
        names: the links to measure, of `LINKS`; the same on all ranks.
        under_way: number of overlapping messages that share a latency.
        most_bytes: size of the job's largest message; longer messages are not tried.

    Returns:
        The links; empty for a job with a single rank.
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

    slowest_s: Callable[[Callable[[], object]], float]
    """Returns the seconds until the last rank has finished a function."""
    under_way: int
    most_bytes: int

    def link(self, exchange: ExchangePattern, send: Send) -> Link:
        """Fits a link to the measured times of this communicator's messages."""
        small_s = self._typical_s(send, SMALL_BYTES, self.under_way) / self.under_way
        size = self._large(send)
        half_s, whole_s = (self._typical_s(send, n, 1) for n in (size // 2, size))
        byte_s = max(SHORTEST_S, 2 * (whole_s - half_s) / size)
        # The slope between two sizes should predict the time of the larger message. If noise makes
        # the slope far off, the time of the larger message alone is more accurate.
        if not 0.8 < byte_s * size / whole_s < 1.3:
            byte_s = max(SHORTEST_S, whole_s - small_s) / size
        ahead = (small_s + byte_s * size - whole_s) / byte_s  # bytes beyond the bandwidth
        burst = min(exchange.crossings * max(0.0, ahead), MOST_BURST_BYTES)
        times_s = {size: whole_s, size // 2: half_s}
        shorter = self._shorter(exchange, send, times_s)
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
        self, exchange: ExchangePattern, send: Send, times_s: dict[int, float]
    ) -> tuple[tuple[float, float], ...]:
        """Returns the sizes and bandwidths of shorter messages, and of the messages in `times_s`.

        A message with mostly latency shows no bandwidth, and is left out.
        """
        alone_s = self._typical_s(send, SMALL_BYTES, 1)
        size = min(times_s) // 2
        while size >= SHORTEST_BYTES:
            times_s[size] = self._typical_s(send, size, 1)
            size //= 4
        return tuple(
            (float(size), exchange.crossings * size / (seconds - alone_s))
            for size, seconds in sorted(times_s.items())
            if seconds > 2 * alone_s + SHORTEST_S
        )

    def _large(self, send: Send) -> int:
        """Returns the size of a message that takes `LONG_S`, at most `most_bytes`."""
        size, limit = FIRST_BYTES, self.most_bytes
        while (seconds := self.slowest_s(partial(send, size, 1))) < LONG_S and size < limit:
            size = min(limit, size * (8 if seconds < LONG_S / 8 else 2))
        return size

    def _typical_s(
        self, send: Send, size: int, count: int, before: Callable[[], None] = lambda: None
    ) -> float:
        """Returns the median seconds of several exchanges; calls `before` before each."""

        def exchange_s() -> float:
            before()
            return self.slowest_s(partial(send, size, count))

        return statistics.median(exchange_s() for _ in range(TIMES))


def gather(collective: Collective, size: int, count: int) -> None:
    """Sends messages as `Allgather` sends frames."""
    for arriving in [collective.gather(zeros(size), WHAT) for _ in range(count)]:
        for _ in arriving:
            pass


def add_up(collective: Collective, spec: str, size: int, count: int) -> None:
    """Sums as `Allreduce` does, in this codec's data type, one sum after another."""
    carrier = make_codec(spec)
    entries = size // carrier.fields(torch.Size([1]))[0].dtype.itemsize
    for _ in range(count):
        collective.sum([Addend(torch.zeros(entries), carrier)], WHAT)


def serve(transport: Transport, timeout_s: float, size: int, count: int) -> None:
    """Sends messages as workers send to a parameter server; its answer ends the step."""
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
