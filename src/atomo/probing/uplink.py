"""The links to a master: messages of all its workers at once, as at a step."""

import struct
import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import numpy as np

from atomo.errors import FrameError
from atomo.probing.link import Line
from atomo.transports import Transport
from atomo.wire import Bytes

__all__ = ["answer_uplink", "measure_uplink"]

MASTER: Final = 0
ASKED: Final = struct.Struct("<QQ")  # bytes of a message, and how many; none of none: it is over
FEW, FEW_COUNT = 1024, 16
MANY, MOST = 2**18, 2**23  # bytes
ENOUGH_S: Final = 0.02  # a time that no clock and no burst of a link makes wrong
REPETITIONS: Final = 3
WHAT: Final = "a message that measures the links"


def measure_uplink(transport: Transport, timeout_s: float) -> Line:
    """The master's part: seconds until it has a message of each worker.

    Raises:
        DeadlineExpired, PeerLost: a worker does not take part.
    """
    size = MANY
    while size < MOST and asked(transport, size, 1, timeout_s) < ENOUGH_S:
        size *= 2
    few = median(asked(transport, FEW, FEW_COUNT, timeout_s) for _ in range(REPETITIONS))
    many = median(asked(transport, size, 1, timeout_s) for _ in range(REPETITIONS))
    order(transport, 0, 0)
    return Line.through((float(FEW), few / FEW_COUNT), (float(size), many))


def answer_uplink(transport: Transport, timeout_s: float) -> None:
    """A worker's part.

    Raises:
        DeadlineExpired, PeerLost: the master does not take part.
        FrameError: it asks for something else.
    """
    for size, count in orders(transport, timeout_s):
        for _ in range(count):
            transport.send(MASTER, np.ones(size, np.uint8), WHAT)


def order(transport: Transport, size: int, count: int) -> None:
    """Has every worker send so many messages."""
    words = np.frombuffer(ASKED.pack(size, count), np.uint8)
    for worker in range(1, transport.size):
        transport.send(worker, words, "an order to measure the links")


def asked(transport: Transport, size: int, count: int, timeout_s: float) -> float:
    """Seconds from the order to the last of the messages."""
    began = time.perf_counter()
    order(transport, size, count)
    for _ in range(count * (transport.size - 1)):
        found = transport.receive(None, timeout_s, WHAT).data.size
        if found != size:
            raise FrameError(f"{found} bytes came where {WHAT} of {size} was expected")
    return time.perf_counter() - began


def orders(transport: Transport, timeout_s: float) -> Iterator[tuple[int, int]]:
    """What the master asks for, until it has all."""
    while True:
        words: Bytes = transport.receive(MASTER, timeout_s, "an order to measure the links").data
        size, count = ASKED.unpack(words.tobytes()) if words.size == ASKED.size else (MOST + 1, 0)
        if size > MOST or count > FEW_COUNT:
            raise FrameError(f"{words.size} bytes came where an order to measure was expected")
        if not count:
            return
        yield size, count
