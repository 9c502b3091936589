"""Top-k: the entries of largest magnitude, exactly.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs import sparse
from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import flat
from atomo.codecs.sparse import Sparse
from atomo.kernels import select

__all__ = ["TopK"]


@final
@dataclass(frozen=True)
class TopK(Codec[Sparse]):
    """The k = ratio * n largest; of equal ones the first. Zeros are never sent.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.01
    """The share of the entries that is sent. Lower => more compression."""
    values: Codec[Any] | None = None
    """Codes the values."""

    id: ClassVar[str] = "topk"
    payload: ClassVar[type[Sparse]] = Sparse
    unit: ClassVar[Unit] = Unit.ENTRIES

    def __post_init__(self) -> None:
        sparse.check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return sparse.sparse_laws(self.values)

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return sparse.inner(self.values)

    def assemble(self, sections: Iterator[Tensor]) -> Sparse:
        return sparse.assemble(sections, self.values)

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Sparse:
        entries = flat(gradient, self.id)
        indices, found = self.find(entries, None)
        return sparse.pack(self.id, indices, found, len(entries), self.values, generator)

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Sparse:
        added, entries = flat(gradient, self.id), kept.view(-1)
        indices, found = self.find(entries, added)
        payload = sparse.pack(self.id, indices, found, len(entries), self.values, generator)
        sparse.feed_back(payload, indices, found, entries, self.values)
        return payload

    def find(self, entries: Float[Tensor, " n"], added: Float[Tensor, " n"] | None) -> select.Found:
        """The entries to send of the sum, which `entries` becomes."""
        k = sparse.wanted(self.ratio, len(entries))
        return sparse.finding(self.id, lambda: select.largest(entries, added, k))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return sparse.sparse_fields(entries, sparse.wanted(self.ratio, entries), self.values)

    def add_decoded(self, payload: Sparse, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        most = sparse.wanted(self.ratio, out.numel())
        sparse.add_sparse(self.id, payload, most, self.values, out, scale)

    def clear_sent(self, payload: Sparse, entries: Float[Tensor, " n"]) -> None:
        """Makes the entries zero that the payload carries, in place."""
        sparse.clear_sent(payload, entries)
