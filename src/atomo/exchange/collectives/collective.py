"""Collective operations: the few that communicators are built on.

Every rank calls the same operations in the same order, each with its own data. Communicators know
nothing below this: whether bytes move over MPI, between threads, or over torch.distributed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.codecs.dense_fallback import DENSE
from atomo.wire import Bytes

__all__ = ["Addend", "Collective"]


@final
@dataclass(frozen=True)
class Addend:
    """One rank's part of a sum."""

    values: Float[Tensor, " n"]
    """Float32 and contiguous. The sum replaces it in place."""
    wire_codec: Codec[Any]
    """The codec of its pieces on the wire. They are added in float32, whatever they travel as. What
    the codec rounds off is lost, so it must be nearly lossless."""


class Collective(ABC):
    """Operations of the ranks 0..size-1 together. Abstract; subclasses are final.

    Raises, wherever something is waited for:
        DeadlineExpired, PeerLost: a rank did not take part; the message names it.
        FrameError: a rank took part in something else.
    """

    rank: int
    size: int
    wait_s: float
    """Seconds spent on waiting for others so far."""
    shares: Sequence[float] = ()
    """The weight of each rank in a mean; empty: all weigh the same."""
    may_repeat: bool = False
    """True if the ranks that are left after a death may repeat an operation."""
    in_one_order: bool = False
    """True if all ranks must begin its operations, and those of other such collectives, in one
    order, whichever threads they are in."""

    @property
    def ranks(self) -> Sequence[int]:
        """The number of each rank in frames: its number in the job, also after others have died."""
        return range(self.size)

    @abstractmethod
    def gather(self, data: Bytes, label: str) -> Iterator[Bytes]:
        """Gathers the data of every rank, in the order of the ranks, this rank's included.

        Begins to send at once; each next item is waited for when it is asked for, so that one can
        be decoded while others are on their way. Lengths may differ, and none is 0. Several
        gathers may be under way if they are read to their ends in the order of their beginnings.
        The bytes are not to be changed, by either end.

        Args:
            data: this rank's.
            label: names it in errors, the same on all ranks. What is gathered at every step has
                " of step " and a number in it: some collectives then need one round, not two.
        """

    @abstractmethod
    def sum(self, addends: Sequence[Addend], label: str) -> None:
        """Replaces each addend's values by the sum over all ranks, alike in every bit everywhere.

        Args:
            addends: as many on every rank, of the same sizes and wire codecs.
            label: names them in errors, the same on all ranks.
        """

    def reduce(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces the values of rank `root` by the sum over all ranks.

        The values of other ranks are scratch space. Unless a subclass does better, all ranks get
        the sum.

        Args:
            values: float32 and contiguous, of the same size on every rank.
            label: names them in errors, the same on all ranks.
            root: the rank that needs the sum.
        """
        del root
        self.sum([Addend(values, DENSE)], label)

    @abstractmethod
    def broadcast(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces values by those of rank `root`, bit for bit.

        Args:
            values: float32 and contiguous, of the same size on every rank.
            label: names them in errors, the same on all ranks.
            root: the rank that has the values.
        """

    def meet(self, label: str, hint: str) -> None:
        """Waits for all ranks where one that does something else instead would end the others.

        Args:
            label: names the next operation, the same on all ranks.
            hint: a question for whoever reads that a rank is absent.
        """
        del label, hint  # of most, an operation that meets another one is an error

    @abstractmethod
    def split(self, ranks: Sequence[int], *, one_host: bool) -> "Collective":
        """Makes a collective of some ranks, among them this rank, for another thread.

        Every rank splits equally often, in the same order. The collectives of one split have no
        rank in common.

        Args:
            ranks: increasing, which is the order of their new numbers.
            one_host: True if the ranks count as one host; False if each counts as a host.
        """
