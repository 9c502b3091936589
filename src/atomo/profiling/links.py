"""What a message takes on the links of a job, by itself and by the byte: as each communicator
sends it, from all ranks at once.

Two sizes are timed, the larger one large enough to take a while. Whatever a link has besides its
bandwidth, such as headers, acknowledgements, or cores that are busy with moving bytes, is in the
figures; so an effective bandwidth comes out below that of the link.
"""

import statistics
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from atomo.codecs import make_codec
from atomo.communicators.collective import Addend, Collective
from atomo.planning import EXCHANGES, Link
from atomo.planning.prediction import HALF
from atomo.profiling.together import Together
from atomo.transports import Transport
from atomo.wire import Bytes

__all__ = ["measure_links"]

SMALL_BYTES: Final = 256
FIRST_BYTES: Final = 64_000
LARGEST_BYTES: Final = 16_000_000
LONG_S: Final = (
    0.3  # what the larger message takes at least, if it is not the largest; more => surer
)
TIMES: Final = 5
MOST_BURST_BYTES: Final = 32_000.0  # of a link; what seems more is noise
SUMS: Final = ("Allreduce", "PowerSGD", "ACPSGD")
SHORTEST_S: Final = 1e-9  # a byte takes longer than nothing, whatever the clock says

Send = Callable[[int], None]
"""Exchanges messages of so many bytes."""


def measure_links(together: Together, transport: Transport, timeout_s: float) -> Mapping[str, Link]:
    """Links by the names that `Setting.measured` has for them, alike on all ranks.

    Args:
        together: the ranks.
        transport: what connects them.
        timeout_s: the longest wait for one of them.
    """
    ranks, collective = transport.size, together.collective
    if ranks < 2:
        return MappingProxyType({})
    sums = {
        name: link_of(together, "Allreduce", ranks, partial(add_up, collective, spec))
        for name, spec in (("", "sgd"), (HALF, "bf16"))
    }
    return MappingProxyType(
        {
            "Bcast": link_of(together, "Bcast", ranks - 1, partial(serve, transport, timeout_s)),
            "Allgather": link_of(together, "Allgather", ranks, partial(gather, collective)),
        }
        | {way + name: link for way, link in sums.items() for name in SUMS}
    )


def link_of(together: Together, communicator: str, workers: int, send: Send) -> Link:
    """The link by which messages of this communicator take what they took."""
    exchange = EXCHANGES[communicator](workers)
    small_s = typical_s(together, send, SMALL_BYTES)
    size = FIRST_BYTES
    while (taken := together.slowest_s(partial(send, size))) < LONG_S and size < LARGEST_BYTES:
        size = min(LARGEST_BYTES, size * (8 if taken < LONG_S / 8 else 2))
    half_s, whole_s = (typical_s(together, send, n) for n in (size // 2, size))
    byte_s = max(SHORTEST_S, 2 * (whole_s - half_s) / size)
    if not 0.8 < byte_s * size / whole_s < 1.3:  # noise: the longer time alone is surer
        byte_s = max(SHORTEST_S, whole_s - small_s) / size
    ahead = (small_s + byte_s * size - whole_s) / byte_s  # bytes that took no time
    burst = min(exchange.crossings * max(0.0, ahead), MOST_BURST_BYTES)
    return Link(exchange.crossings / byte_s, small_s / exchange.latencies, burst)


def typical_s(together: Together, send: Send, size: int) -> float:
    """Seconds of an exchange, the median of some."""
    return statistics.median(together.slowest_s(partial(send, size)) for _ in range(TIMES))


def gather(collective: Collective, size: int) -> None:
    """As `Allgather` sends frames."""
    for _ in collective.gather(some(size), "a probe of the links"):
        pass


def add_up(collective: Collective, spec: str, size: int) -> None:
    """As `Allreduce` adds up what travels as this codec has it."""
    carrier = make_codec(spec)
    entries = size // carrier.fields(torch.Size([1]))[0].dtype.itemsize
    collective.sum([Addend(torch.zeros(entries), carrier)], "a probe of the links")


def serve(transport: Transport, timeout_s: float, size: int) -> None:
    """As the workers of a parameter server send to the master, and it ends the step."""
    what = "a probe of the links"
    if transport.rank:
        transport.send(0, some(size), what)
        transport.receive(0, timeout_s, what)
        return
    for _ in range(1, transport.size):
        transport.receive(None, timeout_s, what)
    for worker in range(1, transport.size):
        transport.send(worker, some(1), what)
    transport.drain(timeout_s)


@cache
def some(size: int) -> Bytes:
    """Bytes, made once."""
    return np.zeros(size, np.uint8)
