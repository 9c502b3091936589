"""Count-sketch: adds every entry, with a random sign, to one of a few cells.

A sketch is linear: the sketches of several workers add up to the sketch of their sum. An entry is
decoded as its cell, times its sign: the entry plus the signed entries that share the cell. This is
unbiased, with the variance (||g||^2 - g_i^2) / cells. The usual sketch takes the median over
several rows, which resists large entries but is biased. The mean over rows is unbiased, and one row
with all the cells has the same variance for fewer hashes; therefore there is one row. At any ratio
that saves much, the noise is larger than the gradient. The codec is here for comparison: the noise
averages out only over many workers with different seeds, and then payloads cannot be summed.

Law: unbiased and summable. Bits: 32 an entry times `ratio`.

Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002; Ivkin et
al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Law
from atomo.codecs.checks import check_ratio
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeded import SeededCodec, SeededVector
from atomo.codecs.seeds import draw_marked_seed
from atomo.errors import CodecError
from atomo.kernels.sketch import add_cells, fill_cells

__all__ = ["CountSketch"]

MAX_CELLS: Final = 2**31


@final
@dataclass(frozen=True)
class CountSketch(SeededCodec):
    """One row of ratio * n cells. Payloads of one seed add by their sums.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.1
    """Cells over entries. Lower => more compression, and more noise."""

    id: ClassVar[str] = "countsketch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED, Law.SUMMABLE})

    def encode(
        self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator
    ) -> SeededVector:
        entries = flat(gradient, self.id)
        seed = draw_marked_seed(generator, len(entries))
        sums = entries.new_zeros(self.count(len(entries)), dtype=torch.float32)
        fill_cells(entries, seed, sums)
        if not sums.isfinite().all():
            raise CodecError("countsketch: the gradient holds NaN or infinity, or a sum overflows")
        return SeededVector(torch.tensor([seed]), sums)

    def count(self, entries: int) -> int:
        """Returns the number of cells for a number of entries."""
        return min(max(1, int(self.ratio * entries)), MAX_CELLS)

    def add_decoded(
        self, payload: SeededVector, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        seed = self.checked_seed(payload, out.numel())
        with adding_to(out, self.id) as entries:
            add_cells(payload.values, seed, entries, scale)
