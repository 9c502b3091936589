"""Collectives over a transport, point to point: every rank sends to every other by itself.

Why not MPI's own: a rank that waits inside one has no deadline, and cannot say whom it waits for.
Why no ring: a rank of a ring waits for its neighbour, who waits for its own, and who is to blame
is out of sight; size - 1 latencies follow one another where here is one; and frames would have to
be passed on by ranks that are busy with their backward pass. What a rank sends and receives is as
much either way: size - 1 frames in a gather, 2 (size - 1) / size of a vector in a sum.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final, final

import torch
import xxhash
from torch import Generator

from atomo.communicators.collective import Addend, Collective
from atomo.errors import CodecError, FrameError
from atomo.transports import Transport
from atomo.wire import Bytes, Compression, Header, Kind, pack, read_header, unpack

__all__ = ["Direct"]

RAW: Final = Compression(codec="none")


@final
class Direct(Collective):
    """The collectives of all ranks of a transport."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        """Collectives.

        Args:
            transport: connects the ranks.
            timeout_s: the longest wait for one of them.
        """
        self.rank, self.size = transport.rank, transport.size
        self.wait_s = 0.0
        self._transport, self._timeout_s = transport, timeout_s

    def gather(self, data: Bytes, what: str) -> Iterator[Bytes]:
        for peer in self._peers():
            self._transport.send(peer, data, what)
        return self._arriving(data, what)

    def sum(self, addends: Sequence[Addend], what: str) -> None:
        pieces = split(addends, self.size)
        parts = self._swap([packed(piece, what) for piece in pieces], what)
        total = packed(self._total(parts, pieces[self.rank], what), what)
        for frame, own in zip(self._swap([total] * self.size, what), pieces, strict=True):
            for piece in own:
                piece.values.zero_()
            add(frame, own, what)

    def _swap(self, frames: Sequence[Bytes], what: str) -> list[Bytes]:
        """Gives each rank its frame, and returns what each has for this one.

        In turns, in each of which every rank sends to one and receives from one: where all send to
        all at once, a link that is slow for its many senders drops what they send, and TCP waits
        200 ms before it sends that again.
        """
        found = [*frames]
        for step in range(1, self.size):
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            self._transport.send(to, frames[to], what)
            found[source] = self._receive(source, what)
        return found

    def _total(self, parts: Sequence[Bytes], own: Sequence[Addend], what: str) -> list[Addend]:
        """The sum of this rank's pieces, in the order of the ranks: equal runs give equal bits."""
        totals = [Addend(torch.zeros_like(piece.values), piece.carrier) for piece in own]
        for rank, frame in enumerate(parts):
            if rank != self.rank:
                add(frame, totals, what)
                continue
            for total, piece in zip(totals, own, strict=True):
                total.values.add_(piece.values)
        return totals

    def _peers(self) -> list[int]:
        """The other ranks. Each begins with another one, so that none is sent to by all at once."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _arriving(self, own: Bytes, what: str) -> Iterator[Bytes]:
        for rank in range(self.size):
            yield own if rank == self.rank else self._receive(rank, what)

    def _receive(self, rank: int, what: str) -> Bytes:
        started = time.perf_counter()
        message = self._transport.receive(rank, self._timeout_s, f"{what} of rank {rank}")
        self.wait_s += time.perf_counter() - started
        return message.data


def split(addends: Sequence[Addend], ranks: int) -> list[list[Addend]]:
    """The pieces that each rank sums. A short vector has none for some of them."""
    pieces: list[list[Addend]] = [[] for _ in range(ranks)]
    for addend in addends:
        for rank, piece in enumerate(torch.tensor_split(addend.values, ranks)):
            if piece.numel():
                pieces[rank].append(Addend(piece, addend.carrier))
    return pieces


def packed(pieces: Sequence[Addend], what: str) -> Bytes:
    """A frame of pieces of a sum."""
    sections = [
        tensor
        for piece in pieces
        for tensor in piece.carrier.sections(piece.carrier.encode(piece.values, Generator()))
    ]
    return pack(Header(Kind.PIECE, layout=told(what)), sections, RAW)


def add(frame: Bytes, pieces: Sequence[Addend], what: str) -> None:
    """Adds a frame to pieces of a sum, in place.

    Raises:
        FrameError: it is of other pieces.
    """
    header = read_header(frame)
    if header.kind is not Kind.PIECE or header.layout != told(what):
        raise FrameError(
            f"a {header.kind.name} came where {what} was expected: do all hosts run the same "
            "version with the same options?"
        )
    fields = [field for piece in pieces for field in piece.carrier.fields(piece.values.shape)]
    sections = iter(unpack(frame, fields))
    for piece in pieces:
        payload = piece.carrier.assemble(sections)
        try:
            piece.carrier.add_decoded(payload, piece.values)
        except CodecError as error:
            raise FrameError(f"{what}: {error}") from error


def told(what: str) -> int:
    """What tells frames of one sum from those of another."""
    return xxhash.xxh32_intdigest(what.encode())
