"""Threshold: the entries whose magnitude is at least a given value.

Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015,
where the sign alone is sent; here it is the value, as Dutta et al., "On the Discrepancy between the
Theoretical Analysis and Practical Implementations of Compressed Communication", AAAI 2020, have it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs import sparse
from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import flat
from atomo.codecs.sparse import Sparse
from atomo.errors import ConfigError
from atomo.kernels import select

__all__ = ["Threshold"]


@final
@dataclass(frozen=True)
class Threshold(Codec[Sparse]):
    """Sends as many entries as are large enough: all of them, or none.

    What is kept is below the threshold everywhere, so that it cannot grow; a gradient below it
    sends nothing at all.

    Raises:
        ConfigError: the value is not positive and finite.
    """

    value: float = 0.001
    """The smallest magnitude that is sent. Higher => more compression."""
    values: Codec[Any] | None = None
    """Codes the values."""

    id: ClassVar[str] = "threshold"
    payload: ClassVar[type[Sparse]] = Sparse
    unit: ClassVar[Unit] = Unit.ENTRIES

    def __post_init__(self) -> None:
        if not 0 < self.value < math.inf:
            raise ConfigError(f"threshold: value must be above 0 and finite, got {self.value}")

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
        indices, found = self.find(entries, None, False)
        return sparse.pack(self.id, indices, found, len(entries), self.values, generator)

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Sparse:
        added, entries = flat(gradient, self.id), kept.view(-1)
        indices, found = self.find(entries, added, True)
        payload = sparse.pack(self.id, indices, found, len(entries), self.values, generator)
        if self.values is not None:
            sparse.feed_back(payload, indices, found, entries, self.values)
        return payload

    def find(
        self, entries: Float[Tensor, " n"], added: Float[Tensor, " n"] | None, clear: bool
    ) -> select.Found:
        """The entries to send of the sum, which `entries` becomes; cleared there if asked to."""
        low = select.bits_of(self.value)
        return sparse.finding(self.id, lambda: select.above(entries, added, low, clear))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return sparse.sparse_fields(shape.numel(), shape.numel(), self.values)

    def add_decoded(self, payload: Sparse, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        sparse.add_sparse(self.id, payload, out.numel(), self.values, out, scale)

    def clear_sent(self, payload: Sparse, entries: Float[Tensor, " n"]) -> None:
        """Makes the entries zero that the payload carries, in place."""
        sparse.clear_sent(payload, entries)
