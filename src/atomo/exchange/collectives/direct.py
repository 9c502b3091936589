"""Collectives over a transport, point to point: every rank sends to every other rank itself.

They are not the collectives of MPI: a rank that waits inside those has no deadline, and cannot name
the rank that it waits for. They use no ring either. In a ring, each rank waits for its neighbour,
so that an error cannot name the absent rank; a message has size - 1 latencies instead of one; and
ranks that are busy with their backward pass must forward frames. The bytes of a rank are the same
in both: size - 1 frames in a gather, 2 (size - 1) / size of a vector in a sum.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final, final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.collectives.device_sum import is_unrounded, sum_on_device
from atomo.exchange.collectives.pieces import Turn, add, chunks_of, packed
from atomo.exchange.collectives.summation import Summation
from atomo.transports import Subgroup, Transport
from atomo.wire import Bytes

__all__ = ["Direct"]

AHEAD: Final = 3  # turns of a sum that are sent ahead of the received one; lower => idle links


@final
class Direct(Collective):
    """The collectives of all ranks of a transport."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        """Creates collectives over a transport.

        Args:
            transport: connects the ranks; between two operations their number may change.
            timeout_s: the longest wait for a rank, seconds.
        """
        self.wait_s = 0.0
        self.may_repeat = transport.revokes_waits
        self._transport, self._timeout_s = transport, timeout_s
        self._one_host = transport.local_size == transport.size

    @property
    def rank(self) -> int:  # type: ignore[override]  # the current one of the transport
        """The number of this rank."""
        return self._transport.rank

    @property
    def size(self) -> int:  # type: ignore[override]
        """The number of ranks."""
        return self._transport.size

    @property
    def ranks(self) -> Sequence[int]:
        return self._transport.global_ranks

    def gather(self, data: Bytes, label: str) -> Iterator[Bytes]:
        for peer in self._peers():
            self._transport.send(peer, data, label)
        return self._arriving(data, label)

    def swap(self, pieces: Sequence[Bytes], label: str) -> list[Bytes]:
        for peer in self._peers():
            self._transport.send(peer, pieces[peer], label)
        return [*self._arriving(pieces[self.rank], label)]

    def sum(self, addends: Sequence[Addend], label: str) -> None:
        channel = self._transport.device_channel(addends[0].values.device) if addends else None
        if channel is not None and is_unrounded(addends):
            started = time.perf_counter()
            sum_on_device(addends, channel, self.rank, self.size, self._timeout_s, label)
            self.wait_s += time.perf_counter() - started
            return
        # Within one host, chunks save no idle link, and each message costs a wake-up.
        chunks = 1 if self._one_host else chunks_of(addends, self.size)
        work = Summation(addends, self.rank, self.size, chunks, label)
        sent = 0
        for number, turn in enumerate(work.turns):
            sent += self._send(work, work.turns[sent : number + 1 + AHEAD], label)
            source = (self.rank - turn.distance) % self.size
            work.take(turn, source, self._receive(source, label))

    def reduce(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        piece = [Addend(values, DENSE)]
        if self.rank != root:
            self._transport.send(root, packed(piece, label), label)
            return
        for peer in sorted(self._peers()):  # in one order: equal runs give equal bits
            add(self._receive(peer, label), piece, label)

    def broadcast(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        if self.rank == root:
            # A copy, since the sender does not know when the transport has sent it.
            frame = packed([Addend(values, DENSE)], label)
            for peer in self._peers():
                self._transport.send(peer, frame, label)
            return
        # Added to -0.0, every value keeps its bits, also a zero its sign.
        add(self._receive(root, label), [Addend(values.fill_(-0.0), DENSE)], label)

    def split(self, ranks: Sequence[int], *, one_host: bool) -> "Direct":
        channel = self._transport.dup(self._timeout_s)
        return Direct(Subgroup(channel, ranks, one_host=one_host), self._timeout_s)

    def _send(self, work: Summation, turns: Sequence[Turn], label: str) -> int:
        """Sends the frames that are ready for the next turns, in order; returns their number."""
        for number, turn in enumerate(turns):
            to = (self.rank + turn.distance) % self.size
            frame = work.frame(turn, to)
            if frame is None:
                return number
            self._transport.send(to, frame, label)
        return len(turns)

    def _peers(self) -> list[int]:
        """Lists the other ranks, from rank + 1 on, so that not all ranks send to the same rank."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _arriving(self, own: Bytes, label: str) -> Iterator[Bytes]:
        for rank in range(self.size):
            yield own if rank == self.rank else self._receive(rank, label)

    def _receive(self, rank: int, label: str) -> Bytes:
        started = time.perf_counter()
        message = self._transport.receive(
            rank, self._timeout_s, f"{label} of rank {self.ranks[rank]}"
        )
        self.wait_s += time.perf_counter() - started
        return message.data
