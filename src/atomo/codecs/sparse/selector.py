"""What the sparsifiers share that find entries by their size and may have the values coded."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.cost import Cost
from atomo.codecs.flat import flat
from atomo.codecs.sparse.payload import (
    Sparse,
    add_sparse,
    assemble,
    clear_sent,
    feed_back,
    pack,
    sparse_cost,
    sparse_fields,
    sparse_laws,
)
from atomo.kernels import select

__all__ = ["Selector"]


class Selector(Codec[Sparse]):
    """Sends the entries that it finds. Abstract; subclasses are final, with a field `values`."""

    payload: ClassVar[type[Sparse]] = Sparse
    unit: ClassVar[Unit] = Unit.ENTRIES

    @property
    @abstractmethod
    def coded_by(self) -> Codec[Any] | None:
        """What codes the values."""

    @abstractmethod
    def find(
        self,
        entries: Float[Tensor, " n"],
        added: Float[Tensor, " n"] | None,
        generator: Generator,
    ) -> select.Found:
        """The entries to send of the sum, which `entries` becomes.

        Raises:
            CodecError: the sum holds NaN or infinity.
        """

    @abstractmethod
    def most(self, entries: int) -> int:
        """How many may be sent of so many."""

    @property
    def laws(self) -> frozenset[Law]:
        return sparse_laws(self.coded_by)

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {} if self.coded_by is None else {"values": self.coded_by}

    def assemble(self, sections: Iterator[Tensor]) -> Sparse:
        return assemble(sections, self.coded_by)

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Sparse:
        entries = flat(gradient, self.id)
        indices, found = self.find(entries, None, generator)
        return pack(self.id, indices, found, len(entries), self.coded_by, generator)

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Sparse:
        added, entries = flat(gradient, self.id), kept.view(-1)
        indices, found = self.find(entries, added, generator)
        payload = pack(self.id, indices, found, len(entries), self.coded_by, generator)
        feed_back(payload, indices, found, entries, self.coded_by)
        return payload

    def fields(self, shape: Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return sparse_fields(entries, self.most(entries), self.coded_by)

    def cost(self, payload: Sparse, shape: Size) -> Cost:
        most = self.most(shape.numel())
        return super().cost(payload, shape) + sparse_cost(payload, most, self.coded_by)

    def add_decoded(self, payload: Sparse, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        add_sparse(self.id, payload, self.most(out.numel()), self.coded_by, out, scale)

    def clear_sent(self, payload: Sparse, entries: Float[Tensor, " n"]) -> None:
        """Makes the entries zero that the payload carries, in place."""
        clear_sent(payload, entries)
