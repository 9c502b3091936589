"""What a message takes between rank 0 and the others: latency, and seconds a byte."""

import time
from typing import Final

import numpy as np

from atomo.planning import Link
from atomo.transports import Transport

__all__ = ["answer_pings", "measure_link"]

SMALL, LARGE = 1, 2**20  # bytes
PINGS: Final = (SMALL,) * 5 + (LARGE,) * 3
WHAT: Final = "a message that measures the links"
FIRST: Final = 0


def measure_link(transport: Transport, timeout_s: float) -> Link:
    """Rank 0's part: the slowest link of all.

    Raises:
        DeadlineExpired, PeerLost: a rank does not answer.
    """
    found = [times(transport, rank, timeout_s) for rank in range(1, transport.size)]
    if not found:
        return Link(1e12, 0.0)  # there is none
    small_s, large_s = (max(column) for column in zip(*found, strict=True))
    return Link((LARGE - SMALL) / max(large_s - small_s, 1e-6), small_s / 2)


def times(transport: Transport, rank: int, timeout_s: float) -> tuple[float, float]:
    """Seconds to one rank and back, of a small message and of a large one, at best."""
    taken: dict[int, list[float]] = {SMALL: [], LARGE: []}
    for size in PINGS:
        began = time.perf_counter()
        transport.send(rank, np.ones(size, np.uint8), WHAT)
        transport.receive(rank, timeout_s, WHAT)
        taken[size].append(time.perf_counter() - began)
    return min(taken[SMALL]), min(taken[LARGE])


def answer_pings(transport: Transport, timeout_s: float) -> None:
    """Every other rank's part."""
    for _ in PINGS:
        transport.receive(FIRST, timeout_s, WHAT)
        transport.send(FIRST, np.ones(SMALL, np.uint8), WHAT)
