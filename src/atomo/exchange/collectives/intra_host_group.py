"""Operations of the ranks of one host: dense sums at one rank, and copies from it."""

import time
from typing import final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs.dense_fallback import DENSE
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.pieces import add, packed
from atomo.transports import Transport

__all__ = ["IntraHostGroup"]


@final
class IntraHostGroup:
    """The ranks of a host, over two transports: one up to who sums, one down to all others.

    Each has one thread: a sum need not wait for a copy of another bucket, nor that for a sum.
    """

    def __init__(self, up: Transport, down: Transport, timeout_s: float) -> None:
        self.rank, self.size = up.rank, up.size
        self.up_s = self.down_s = 0.0  # waited for others so far
        self._up, self._down, self._timeout_s = up, down, timeout_s

    def sum_at(self, root: int, flat: Float[Tensor, " n"], what: str) -> None:
        """Replaces `flat` of rank `root` by the sum over all, in the order of ranks behind its own.

        Raises:
            FrameError, TransportError: another rank sent something else, or nothing.
        """
        whole = [Addend(flat, DENSE)]
        if self.rank != root:
            self._up.send(root, packed(whole, what), what)
            return
        for peer in self._peers():
            began = time.perf_counter()
            message = self._up.receive(peer, self._timeout_s, f"{what} of rank {peer}")
            self.up_s += time.perf_counter() - began
            add(message.data, whole, what)

    def give(self, mean: Float[Tensor, " n"], what: str) -> None:
        """Gives all others a tensor, bit for bit."""
        frame = packed([Addend(mean, DENSE)], what)
        for peer in self._peers():
            self._down.send(peer, frame, what)

    def take(self, root: int, out: Float[Tensor, " n"], what: str) -> None:
        """Replaces `out` by what rank `root` gives. Errors: those of `sum_at`."""
        began = time.perf_counter()
        message = self._down.receive(root, self._timeout_s, f"{what} of rank {root}")
        self.down_s += time.perf_counter() - began
        add(message.data, [Addend(out.zero_(), DENSE)], what)

    def _peers(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]
