"""Top-k within tiles: the entries of largest magnitude of each tile of a matrix, exactly.

Each part of a layer sends its share, also where its entries are small.

Law: contraction: the squared error is at most (1 - k / n) of each tile. Bits: rho (32 + b) an
entry, b as in `topk`; with `values=lloydmax` rho (2 + b).

Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", 2025 (arXiv:2508.15706).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Granularity
from atomo.codecs.checks import check_ratio
from atomo.codecs.dense.dense import DENSE
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.search import Search
from atomo.codecs.sparse.selector import Selector
from atomo.errors import ConfigError
from atomo.kernels.tiles import Tiling, tile_sizes

__all__ = ["TileTopK"]

LONGEST: Final = 1024


@final
@dataclass(frozen=True)
class TileTopK(Selector):
    """The k = ratio * n largest of the n entries of each tile, but at least 1; of equal entries the
    first. Zeros are never sent.

    A parameter of shape (out, ...) is a matrix with `out` rows, in tiles of tile x tile entries. A
    vector is cut into runs of tile * tile entries. Tiles at the edges are smaller.

    Raises:
        ConfigError: a setting is out of range.
    """

    ratio: float = 0.0156
    """The share of the entries of each tile that is sent: 64 of 4096. Lower => more compression."""
    tile: int = 64
    """The side of a tile. Higher => nearer to `topk` of the layer."""
    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the values."""

    id: ClassVar[str] = "tiletopk"
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)
        if not 1 <= self.tile <= LONGEST:
            raise ConfigError(f"tiletopk: tile must be in 1..{LONGEST}, got {self.tile}")

    @property
    def value_codec(self) -> Codec[Any]:
        return self.values

    def find(
        self, search: Search, generator: torch.Generator
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        del generator  # deterministic
        tiling = self.tiling(search.shape)
        return search.largest_in_tiles(tiling, self.counts(tiling))

    def tiling(self, shape: torch.Size) -> Tiling:
        """Returns the matrix and the tiles of a parameter."""
        if len(shape) < 2:
            return Tiling(1, shape.numel(), 1, self.tile**2)
        rows = shape[0]
        return Tiling(rows, shape.numel() // max(1, rows), self.tile, self.tile)

    def counts(self, tiling: Tiling) -> Int64[torch.Tensor, "down across"]:
        """Returns the number of entries to send of each tile."""
        sizes = tile_sizes(tiling)
        return (sizes * self.ratio).round().long().clamp_min(1).minimum(sizes)

    def max_count(self, shape: torch.Size) -> int:
        return int(self.counts(self.tiling(shape)).sum())
