"""One sum over all ranks at one rank: the frames that the rank sends and takes at each turn."""

from collections.abc import Sequence
from typing import final

import torch

from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.pieces import Piece, Turn, add, cut, packed, turns
from atomo.wire import Bytes

__all__ = ["Summation"]


@final
class Summation:
    """Addends that become sums in place, piece by piece: a reduce-scatter and an all-gather."""

    def __init__(
        self, addends: Sequence[Addend], rank: int, size: int, chunks: int, label: str
    ) -> None:
        self._rank, self._label = rank, label
        self._chunks = cut(addends, size, chunks)
        self.turns = turns(chunks, size)
        self._received: list[dict[int, Bytes]] = [{} for _ in self._chunks]  # addends, by rank
        self._sums: dict[int, Bytes] = {}  # of this rank's pieces, by chunk
        if size == 1:
            for chunk in range(chunks):
                self._close(chunk)

    def frame(self, turn: Turn, to: int) -> Bytes | None:
        """Returns the frame for rank `to`; None until all its addends have come."""
        if turn.summed:
            return self._sums.get(turn.chunk)
        return packed(self._chunks[turn.chunk][to], self._label)

    def take(self, turn: Turn, source: int, frame: Bytes) -> None:
        """Takes in a frame of rank `source`.

        Raises:
            FrameError: the frame is no piece of this sum.
        """
        if turn.summed:
            self._replace(self._chunks[turn.chunk][source], frame)
            return
        received, pieces = self._received[turn.chunk], self._chunks[turn.chunk]
        received[source] = frame
        if len(received) == len(pieces) - 1:
            self._close(turn.chunk)

    def _close(self, chunk: int) -> None:
        """Adds up this rank's piece, in the order of the ranks: equal runs give equal bits."""
        received, own = self._received[chunk], self._chunks[chunk][self._rank]
        sums = [Addend(torch.zeros_like(addend.values), addend.wire_codec) for addend in own]
        for rank in range(len(self._chunks[chunk])):
            if rank != self._rank:
                add(received.pop(rank), sums, self._label)
                continue
            for total, addend in zip(sums, own, strict=True):
                total.values.add_(addend.values)
        self._sums[chunk] = packed(sums, self._label)
        self._replace(own, self._sums[chunk])  # rounded as on the other ranks

    def _replace(self, piece: Piece, frame: Bytes) -> None:
        for addend in piece:
            addend.values.zero_()
        add(frame, piece, self._label)
