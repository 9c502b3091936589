"""What a rank has measured, as numbers that travel; and the costs that all ranks agree on.

A message is there once the slowest rank's part of it is, so that agreed costs are the greatest of
all: no rank's timings are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.fusion.flow import Flow, Times
from atomo.planning import Costs
from atomo.probing.link import Line

__all__ = ["Numbers", "Probe", "agreed", "agreed_flow"]

Numbers = NDArray[np.float64]
ALONE: Final = 3  # numbers that are not of tensors: slowing, and the two of a line
NO_LINE: Final = Line()
ROWS: Final = 4  # of the others: ready, encode, decode, bytes; the last three of a message as well


@final
@dataclass(frozen=True)
class Probe:
    """One rank's, of tensors in the order of the backward pass. What it did not measure is 0."""

    ready_s: tuple[float, ...]
    """When each gradient is there, from the begin of the backward pass."""
    encode_s: tuple[float, ...]
    """What each adds to a message; behind them, what a message takes beside. So are the next."""
    decode_s: tuple[float, ...]
    """Of all messages that one rank decodes."""
    sent_bytes: tuple[float, ...]
    slowing: float = 0.0
    """Seconds by which a second of encoding delays the backward pass, 0..1."""
    line: Line = NO_LINE

    @staticmethod
    def nothing(tensors: int) -> "Probe":
        """Of a rank that computes no gradients."""
        none = (0.0,) * (tensors + 1)
        return Probe(none[1:], none, none, none)

    @staticmethod
    def of(costs: Costs, ready_s: Sequence[float], decodes: int, stretch: float) -> "Probe":
        """From the costs of a codec.

        Args:
            costs: measured while nothing else ran.
            ready_s: when each gradient is there.
            decodes: messages that one rank decodes.
            stretch: how many times as long encoding takes beside the backward pass.
        """
        rows = [*costs.each, costs.message]
        return Probe(
            (max(ready_s),) * len(ready_s) if costs.holds else tuple(ready_s),
            tuple(stretch * one.encode_s for one in rows),
            tuple(decodes * one.decode_s for one in rows),
            tuple(one.sent_bytes for one in rows),
        )

    def numbers(self) -> Numbers:
        """All of it in a row."""
        alone = self.slowing, self.line.start_s, self.line.byte_s
        return np.array([*alone, *self.ready_s, *self.encode_s, *self.decode_s, *self.sent_bytes])

    @staticmethod
    def from_numbers(numbers: NDArray[Any]) -> "Probe":
        """The inverse of `numbers`."""
        values = [float(number) for number in numbers]
        tensors = (len(values) - ALONE - (ROWS - 1)) // ROWS
        slowing, start_s, byte_s = values[:ALONE]
        rest = iter(values[ALONE:])
        ready = tuple(next(rest) for _ in range(tensors))
        encode, decode, sent = (
            tuple(next(rest) for _ in range(tensors + 1)) for _ in range(ROWS - 1)
        )
        return Probe(ready, encode, decode, sent, slowing, Line(start_s, byte_s))


def agreed(all_ranks: Sequence[NDArray[Any]]) -> Probe:
    """Of each number the greatest that a rank found."""
    return Probe.from_numbers(np.maximum.reduce(list(all_ranks)))


def agreed_flow(probe: Probe) -> Flow:
    """The flow shop with these costs."""
    sends = [probe.line.byte_s * sent for sent in probe.sent_bytes]
    rows = [Times(*row) for row in zip(probe.encode_s, sends, probe.decode_s, strict=True)]
    *each, (encode, send, decode) = rows
    message = Times(encode, send + probe.line.start_s, decode)
    return Flow(probe.ready_s, tuple(each), message, probe.slowing)
