"""What a message takes on the links of a job, by itself and by the byte: as each communicator
sends it, from all ranks at once.

Two large sizes are timed, which take a while, and shorter ones down to some kilobytes: messages
that fit into the queues on their way may be faster. Whatever a link has besides its bandwidth, such
as headers, acknowledgements, or cores that are busy with moving bytes, is in the figures; so an
effective bandwidth comes out below that of the link.
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
from atomo.comm_types import COMM_TYPES, PARAMETER_SERVER
from atomo.communicators.collective import Addend, Collective
from atomo.planning import EXCHANGES, Costs, Link
from atomo.planning.exchanges import Exchange
from atomo.planning.prediction import HALF
from atomo.probing.together import Together
from atomo.transports import Transport
from atomo.wire import Bytes

__all__ = ["LINKS", "links_for", "measure_links"]

SMALL_BYTES: Final = 256
SHORTEST_BYTES: Final = 8_000  # of a message that says something of bandwidth
FIRST_BYTES: Final = 64_000
LARGEST_BYTES: Final = 16_000_000
LONG_S: Final = (
    0.3  # what the larger message takes at least, if it is not the largest; more => surer
)
TIMES: Final = 5
REST_S: Final = 0.1  # after which a limit lets through all that it ever does at once
SLOW_S: Final = 0.01  # of a message, from which on a rest is worth looking for
MOST_BURST_BYTES: Final = 32_000.0  # of a link; what seems more is noise
GATHERS: Final = "Allgather"
SUMS: Final = tuple(name for name in COMM_TYPES if name not in (PARAMETER_SERVER, GATHERS))
SUMMED: Final = (*SUMS, *(HALF + name for name in SUMS))
LINKS: Final = (PARAMETER_SERVER, GATHERS, *SUMMED)
"""All that `Setting.measured` has names for."""
SHORTEST_S: Final = 1e-9  # a byte takes longer than nothing, whatever the clock says
WHAT: Final = "a probe of the links"

Send = Callable[[int, int], None]
"""Exchanges messages: of how many bytes each, and how many, all of them under way at once where the
communicator has them so.
"""


def measure_links(
    together: Together,
    transport: Transport,
    timeout_s: float,
    names: Sequence[str] = LINKS,
    *,
    under_way: int = 1,
    most_bytes: int = LARGEST_BYTES,
) -> Mapping[str, Link]:
    """Links by the names that `Setting.measured` has for them, alike on all ranks.

    Args:
        together: the ranks.
        transport: what connects them.
        timeout_s: the longest wait for one of them.
        names: of the links that are asked for, of `LINKS`; the same on all ranks.
        under_way: of how many messages at once the latency is that of one.
        most_bytes: of a message that the job has; longer ones are not tried.

    Returns:
        The links; of a rank alone, none.
    """
    if transport.size < 2:
        return MappingProxyType({})
    bench = Bench(together.slowest_s, under_way, min(LARGEST_BYTES, max(FIRST_BYTES, most_bytes)))
    collective = together.collective
    ways: dict[str, Send] = {
        PARAMETER_SERVER: partial(serve, transport, timeout_s),
        GATHERS: partial(gather, collective),
        **dict.fromkeys(SUMS, partial(add_up, collective, "sgd")),
        **dict.fromkeys((HALF + name for name in SUMS), partial(add_up, collective, "bf16")),
    }
    found: dict[Send, Link] = {}  # all sums are one
    for name in names:
        if ways[name] not in found:
            workers = transport.size - (name == PARAMETER_SERVER)
            exchange = EXCHANGES[name.removeprefix(HALF)](workers, 1)
            found[ways[name]] = bench.link(exchange, ways[name])
    return MappingProxyType({name: found[ways[name]] for name in names})


def links_for(comm_types: Collection[str], costs: Collection[Costs]) -> list[str]:
    """Those of `LINKS` that these communicators send such gradients over."""
    halves = {one.half for one in costs}
    return [
        name
        for name in LINKS
        if name.removeprefix(HALF) in comm_types
        and (name not in SUMMED or name.startswith(HALF) in halves)
    ]


@final
@dataclass(frozen=True)
class Bench:
    """Times messages."""

    taken_s: Callable[[Callable[[], object]], float]
    """Seconds of work until the last rank is done with it."""
    under_way: int
    most_bytes: int

    def link(self, exchange: Exchange, send: Send) -> Link:
        """The link by which messages of this communicator take what they took."""
        small_s = self._typical_s(send, SMALL_BYTES, self.under_way) / self.under_way
        size = self._large(send)
        half_s, whole_s = (self._typical_s(send, n, 1) for n in (size // 2, size))
        byte_s = max(SHORTEST_S, 2 * (whole_s - half_s) / size)
        if not 0.8 < byte_s * size / whole_s < 1.3:  # noise: the longer time alone is surer
            byte_s = max(SHORTEST_S, whole_s - small_s) / size
        ahead = (small_s + byte_s * size - whole_s) / byte_s  # bytes that took no time
        burst = min(exchange.crossings * max(0.0, ahead), MOST_BURST_BYTES)
        taken_s = {size: whole_s, size // 2: half_s}
        shorter = self._shorter(exchange, send, taken_s)
        rested = min(exchange.crossings * self._rested_s(send) / byte_s, MOST_BURST_BYTES)
        speed = exchange.crossings / byte_s
        return Link(speed, small_s / exchange.latencies, burst, shorter, rested)

    def _rested_s(self, send: Send) -> float:
        """Seconds by which a message takes less where nothing went before it for a while."""

        def rest() -> None:
            time.sleep(REST_S)

        busy_s = self._typical_s(send, FIRST_BYTES, 1)
        if busy_s < SLOW_S:
            return 0.0
        return max(0.0, busy_s - self._typical_s(send, FIRST_BYTES, 1, rest))

    def _shorter(
        self, exchange: Exchange, send: Send, taken_s: dict[int, float]
    ) -> tuple[tuple[float, float], ...]:
        """Bytes of shorter messages, and the bandwidth of each, with those that were timed before.

        What is most of all waiting says nothing of bandwidth, and is left out.
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
        """Bytes of a message that takes a while."""
        size, most = FIRST_BYTES, self.most_bytes
        while (taken := self.taken_s(partial(send, size, 1))) < LONG_S and size < most:
            size = min(most, size * (8 if taken < LONG_S / 8 else 2))
        return size

    def _typical_s(
        self, send: Send, size: int, count: int, before: Callable[[], None] = lambda: None
    ) -> float:
        """Seconds of an exchange, the median of some, with something before each."""

        def taken_s() -> float:
            before()
            return self.taken_s(partial(send, size, count))

        return statistics.median(taken_s() for _ in range(TIMES))


def gather(collective: Collective, size: int, count: int) -> None:
    """As `Allgather` sends frames."""
    for arriving in [collective.gather(some(size), WHAT) for _ in range(count)]:
        for _ in arriving:
            pass


def add_up(collective: Collective, spec: str, size: int, count: int) -> None:
    """As `Allreduce` adds up what travels as this codec has it: one sum after another."""
    carrier = make_codec(spec)
    entries = size // carrier.fields(torch.Size([1]))[0].dtype.itemsize
    for _ in range(count):
        collective.sum([Addend(torch.zeros(entries), carrier)], WHAT)


def serve(transport: Transport, timeout_s: float, size: int, count: int) -> None:
    """As the workers of a parameter server send to the master, and it ends the step."""
    if transport.rank:
        for _ in range(count):
            transport.send(0, some(size), WHAT)
        transport.receive(0, timeout_s, WHAT)
        return
    for _ in range(count * (transport.size - 1)):
        transport.receive(None, timeout_s, WHAT)
    for worker in range(1, transport.size):
        transport.send(worker, some(1), WHAT)
    transport.drain(timeout_s)


@cache
def some(size: int) -> Bytes:
    """Bytes, made once."""
    return np.zeros(size, np.uint8)
