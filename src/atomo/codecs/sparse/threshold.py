"""Threshold: the entries with a magnitude of at least a given value.

Law: contraction, though not a strict one: a gradient below the value everywhere sends nothing.
Bits: as many as are large, with 32 for each and b as in `topk`.

Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015,
where the sign alone is sent; here it is the value, as Dutta et al., "On the Discrepancy between the
Theoretical Analysis and Practical Implementations of Compressed Communication", AAAI 2020, have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Law
from atomo.codecs.checks import as_codec_error
from atomo.codecs.dense.dense import DENSE
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.payload import Sparse
from atomo.codecs.sparse.search import Search, WholeSearch
from atomo.codecs.sparse.selector import Selector
from atomo.errors import ConfigError
from atomo.kernels import selection as select

__all__ = ["Threshold"]


@final
@dataclass(frozen=True)
class Threshold(Selector):
    """Sends all entries that are large enough: their number is not bounded.

    The residual is below the threshold everywhere, so that it cannot grow; a gradient below it
    sends nothing at all.

    Raises:
        ConfigError: the value is not positive and finite.
    """

    value: float = 0.001
    """The smallest magnitude that is sent. Higher => more compression."""
    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the values."""

    id: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.value < math.inf:
            raise ConfigError(f"threshold: value must be above 0 and finite, got {self.value}")

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def encode_remainder(
        self,
        residual: Float[torch.Tensor, "..."],
        added: Float[torch.Tensor, " n"] | None,
        generator: torch.Generator,
    ) -> Sparse:
        if Law.LOSSLESS not in self.values.laws:
            return super().encode_remainder(residual, added, generator)
        search = WholeSearch(residual.view(-1), added, residual.shape)
        with as_codec_error(self.id, "the gradient holds"):
            # A value that is sent without loss is cleared in the pass that selects it.
            indices, values = search.above(select.bits_of(self.value), clear=True)
        return self.pack(indices, values, len(search), generator)

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        del generator  # deterministic
        return search.above(select.bits_of(self.value))

    def max_count(self, shape: torch.Size) -> int:
        return shape.numel()
