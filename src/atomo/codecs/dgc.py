"""Deep Gradient Compression's selection: a sampled threshold, adapted to the gradient.

The momentum correction that belongs to it is the memory `dgc`.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs import sparse
from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.flat import flat
from atomo.codecs.sparse import Sparse
from atomo.errors import ConfigError
from atomo.kernels import select

__all__ = ["DGC", "WARM_UP", "warm_up"]

WARM_UP: Final = (0.25, 0.063, 0.015, 0.004, 0.001)
"""The published ratios of the first epochs."""
SAMPLED: Final = 0.01  # of the entries
TIMES: Final = 10
MANY, FEW, LOWER = 1.3, 0.8, 0.8


def warm_up(ratio: float, epochs: int) -> tuple[float, ...]:
    """The ratios of the warm-up epochs and of the one behind them: they fall exponentially.

    >>> [round(value, 3) for value in warm_up(0.001, 2)]
    [0.1, 0.01, 0.001]

    Raises:
        ConfigError: the ratio is out of range, or `epochs` negative.
    """
    sparse.check_ratio("dgc", ratio)
    if epochs < 0:
        raise ConfigError(f"dgc: warm-up epochs must be 0 or more, got {epochs}")
    coefficient = ratio ** (1 / (epochs + 1))
    return tuple(coefficient ** (epoch + 1) for epoch in range(epochs + 1))


@final
@dataclass(frozen=True)
class DGC(Codec[Sparse]):
    """About the largest `ratio` of the entries: up to 1.3 times as many.

    Where even the tenth lower threshold finds too few, these few are sent.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.001
    """The share of the entries that is sent. Lower => more compression."""
    values: Codec[Any] | None = None
    """Codes the values."""

    id: ClassVar[str] = "dgc"
    memory: ClassVar[str | None] = "dgc"
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
        indices, found = self.find(entries, None, generator)
        return sparse.pack(self.id, indices, found, len(entries), self.values, generator)

    def encode_residual(
        self, gradient: Float[Tensor, "*s"], kept: Float[Tensor, "*s"], generator: Generator
    ) -> Sparse:
        added, entries = flat(gradient, self.id), kept.view(-1)
        indices, found = self.find(entries, added, generator)
        payload = sparse.pack(self.id, indices, found, len(entries), self.values, generator)
        sparse.feed_back(payload, indices, found, entries, self.values)
        return payload

    def find(
        self,
        entries: Float[Tensor, " n"],
        added: Float[Tensor, " n"] | None,
        generator: Generator,
    ) -> select.Found:
        """The entries to send of the sum, which `entries` becomes."""
        threshold = self.sampled_threshold(entries, added, generator)
        return sparse.finding(self.id, lambda: self.adapt(entries, added, threshold))

    def sampled_threshold(
        self,
        entries: Float[Tensor, " n"],
        added: Float[Tensor, " n"] | None,
        generator: Generator,
    ) -> int:
        """The bits of the smallest of the top `ratio` of every so manyth magnitude."""
        n, fewest = len(entries), math.ceil(2 / self.ratio)
        start, stride = 0, 1
        if n > fewest:
            stride = math.ceil(n / max(math.ceil(SAMPLED * n), fewest) / 32) * 32 + 1
            # A start behind the end would sample nothing.
            start = int(
                torch.randint(min(stride, n), (), generator=generator, device=entries.device)
            )
        positions = torch.arange(start, n, stride, device=entries.device)
        sampled = select.magnitudes(entries, added, positions)
        return select.kth_largest(sampled, math.ceil(len(sampled) * self.ratio))[0]

    def adapt(
        self, entries: Float[Tensor, " n"], added: Float[Tensor, " n"] | None, threshold: int
    ) -> select.Found:
        """Lowers a threshold that finds too few; of too many it takes the largest."""
        k = sparse.wanted(self.ratio, len(entries))
        bits = max(1, threshold)
        indices, found = select.above(entries, added, bits)
        for _ in range(TIMES):
            if len(found) >= FEW * k or bits <= 1:
                break
            bits = max(1, lowered(bits))
            indices, found = select.above(entries, None, bits)
        if len(found) > MANY * k:
            return select.first_largest(indices, found, k)
        return indices, found

    def fields(self, shape: Size) -> tuple[Field, ...]:
        return sparse.sparse_fields(shape.numel(), self.most(shape.numel()), self.values)

    def most(self, entries: int) -> int:
        """How many may be sent."""
        return min(entries, math.floor(MANY * sparse.wanted(self.ratio, entries)))

    def add_decoded(self, payload: Sparse, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        sparse.add_sparse(self.id, payload, self.most(out.numel()), self.values, out, scale)

    def clear_sent(self, payload: Sparse, entries: Float[Tensor, " n"]) -> None:
        """Makes the entries zero that the payload carries, in place."""
        sparse.clear_sent(payload, entries)


def lowered(bits: int) -> int:
    """The bits of 0.8 times the magnitude that has `bits`."""
    value = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    return int((value * LOWER).view(torch.int32))
