"""Top-k: the entries of largest magnitude, exactly.

Law: contraction: the squared error is at most (1 - k / n) ||g||^2. Bits: rho (32 + b) an entry for
k / n = rho, with b = log2(1 / rho) + 1.5 for a place.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Granularity
from atomo.codecs.checks import check_known, check_ratio
from atomo.codecs.dense.dense import DENSE
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.payload import count_for
from atomo.codecs.sparse.search import Search
from atomo.codecs.sparse.selector import SCOPES, Selector

__all__ = ["TopK"]


@final
@dataclass(frozen=True)
class TopK(Selector):
    """The k = ratio * n largest entries; of equal entries the first. Zeros are never sent.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.01
    """The share of the entries that is sent. Lower => more compression."""
    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the values."""
    scope: str = "bucket"
    """The group of entries for `ratio`: "layer", or "bucket", joined layers in which layers with
    larger entries get a larger share. With "layer" a small layer sends few entries, and the others
    wait long; `dgc` sends at least 64."""

    id: ClassVar[str] = "topk"
    suits_adam: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        check_known(self.id, "scope", self.scope, SCOPES)

    @property
    def granularity(self) -> Granularity:
        return SCOPES[self.scope]

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        del generator  # deterministic
        return search.largest(self.max_count(search.shape))

    def max_count(self, shape: torch.Size) -> int:
        return count_for(self.ratio, shape.numel())
