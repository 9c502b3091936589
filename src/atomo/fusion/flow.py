"""Completion time of an exchange: encoding, sending and decoding as a flow shop of three machines.

Tensors become ready one after another while the backward pass runs. A group of consecutive tensors
is one message, which each machine works on in its turn, one message at a time:

    E_k = max(E_{k-1}, ready_k + s H_{k-1}) + h_k    encoded
    S_k = max(S_{k-1}, E_k) + g_k                    received by all
    D_k = max(D_{k-1}, S_k) + d_k                    decoded

where h, g and d are a cost of each message and one of each tensor in it. s says how much encoding
slows the backward pass that it runs beside: not at all (0) where a core is free, and by as long as
it takes (1) where none is. H_{k-1} is the encoding of the groups before. If the encoder is idle
when group k is ready, all of H_{k-1} has run beside the backward pass, and the second term is
exact; if it is busy, the first term is the greater.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, final

__all__ = ["Flow", "Times"]


class Times(NamedTuple):
    """Seconds of each machine."""

    encode: float
    send: float
    decode: float


@final
@dataclass(frozen=True)
class Flow:
    """The costs of an exchange of tensors, in the order in which a backward pass makes them."""

    ready: tuple[float, ...]
    """The time at which each gradient is ready, seconds from the start of the backward pass."""
    each: tuple[Times, ...]
    """The times that each tensor adds to its message."""
    message: Times
    """The times that a message takes beside its tensors: headers, latency."""
    slowing: float = 0.0
    """Seconds by which a second of encoding delays the backward pass, 0..1."""

    @cached_property
    def whole(self) -> tuple[float, ...]:
        """The time at which each gradient and all gradients before it are ready."""
        return tuple(accumulate(self.ready, max))

    @cached_property
    def totals(self) -> tuple[Times, ...]:
        """The total times of the first 0, 1, 2, ... tensors."""
        sums = accumulate(
            self.each,
            lambda total, addend: Times(*map(sum, zip(total, addend, strict=True))),
            initial=Times(0.0, 0.0, 0.0),
        )
        return tuple(sums)

    def group(self, start: int, stop: int) -> Times:
        """Returns the times of a message with the tensors start..stop-1."""
        first, last = self.totals[start], self.totals[stop]
        return Times(*(m + b - a for m, a, b in zip(self.message, first, last, strict=True)))

    def worked(self, cuts: Sequence[int]) -> float:
        """Returns a lower bound on the time at which a rank's cores have finished all work.

        A second of encoding or decoding delays the backward pass by `slowing` seconds, as the same
        cores do both. Without a free core, the times of passes, encoding and decoding add up.

        Args:
            cuts: as `done` takes them.
        """
        groups = (self.group(start, stop) for start, stop in pairwise((0, *cuts)))
        coding = sum(times.encode + times.decode for times in groups)
        return self.whole[-1] + self.slowing * coding

    def done(self, cuts: Sequence[int]) -> float:
        """Returns the time at which everything is decoded.

        Args:
            cuts: number of tensors up to the end of each group, increasing; the last is all
                tensors.
        """
        encoded = sent = decoded = encoding = 0.0
        for start, stop in pairwise((0, *cuts)):
            times = self.group(start, stop)
            encoded = max(encoded, self.whole[stop - 1] + self.slowing * encoding) + times.encode
            encoding += times.encode
            sent = max(sent, encoded) + times.send
            decoded = max(decoded, sent) + times.decode
        return decoded
