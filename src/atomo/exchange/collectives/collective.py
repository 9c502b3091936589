"""Collective operations, the interface between communicators and transports.

Every rank calls the same operations in the same order, each with its own data. Communicators do not
know the layer below, which is MPI, threads of one process, or torch.distributed.
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
    """The codec of its pieces on the wire. Ranks add decoded pieces in float32. Rounding errors of
    the codec are lost, so it must be nearly lossless."""


class Collective(ABC):
    """Operations of the ranks 0..size-1 together. Abstract; subclasses are final.

    Raises, in all operations that wait:
        DeadlineExpired, PeerLost: a rank did not take part; the message names it.
        FrameError: a rank takes part in another operation.
    """

    rank: int
    size: int
    wait_s: float
    """Seconds of waiting for other ranks so far."""
    shares: Sequence[float] = ()
    """The weight of each rank in a mean; empty: all ranks have the same weight."""
    may_repeat: bool = False
    """True if the surviving ranks may repeat an operation after the death of a rank."""
    in_one_order: bool = False
    """True if all ranks must begin the operations of all such collectives in one order, also from
    several threads."""

    @property
    def ranks(self) -> Sequence[int]:
        """The number of each rank in frames: its number in the job, also after ranks have died."""
        return range(self.size)

    @abstractmethod
    def gather(self, data: Bytes, label: str) -> Iterator[Bytes]:
        """Gathers the data of every rank, in the order of the ranks, this rank included.

        Sending begins with the call. The iterator waits for each item when the caller requests it,
        so that an item can be decoded while others are in flight. Lengths may differ; no length is
        0. Several gathers may be in flight if the caller reads them to their ends, in the order of
        their calls. Neither the sender nor the receivers may change the bytes.

        Args:
            data: the data of this rank.
            label: the name in errors, the same on all ranks. The label of a gather at every step
                contains " of step " and a number: some collectives then need one round, not two.
        """

    @abstractmethod
    def swap(self, pieces: Sequence[Bytes], label: str) -> list[Bytes]:
        """Sends one piece to each rank, and returns the pieces for this rank, in order of ranks.

        Lengths may differ; no length is 0. Neither the sender nor the receivers may change the
        bytes.

        Args:
            pieces: the piece for each rank, this rank included.
            label: the name in errors, the same on all ranks.
        """

    @abstractmethod
    def sum(self, addends: Sequence[Addend], label: str) -> None:
        """Replaces the values of each addend by their sum over all ranks, the same in every bit.

        Args:
            addends: the same number on every rank, with the same sizes and wire codecs.
            label: the name in errors, the same on all ranks.
        """

    def reduce(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces the values of rank `root` by the sum over all ranks.

        The values of other ranks are scratch space. This default gives all ranks the sum.

        Args:
            values: float32 and contiguous, of the same size on every rank.
            label: the name in errors, the same on all ranks.
            root: the rank that needs the sum.
        """
        del root
        self.sum([Addend(values, DENSE)], label)

    @abstractmethod
    def broadcast(self, values: Float[Tensor, " n"], label: str, root: int = 0) -> None:
        """Replaces values by the values of rank `root`, bit for bit.

        Args:
            values: float32 and contiguous, of the same size on every rank.
            label: the name in errors, the same on all ranks.
            root: the rank that has the values.
        """

    def meet(self, label: str, hint: str) -> None:
        """Waits for all ranks, if a rank in another operation would abort their processes.

        Args:
            label: the name of the next operation, the same on all ranks.
            hint: the question to the user that ends the error about an absent rank.
        """
        del label, hint  # in most collectives, two different operations are an error

    @abstractmethod
    def split(self, ranks: Sequence[int], *, one_host: bool) -> "Collective":
        """Makes a collective of some ranks, among them this rank, for another thread.

        Every rank must call it the same number of times, in the same order. The collectives of one
        split have no rank in common.

        Args:
            ranks: the ranks, increasing, in the order of their new numbers.
            one_host: True if the ranks count as one host; False if each counts as a host.
        """
