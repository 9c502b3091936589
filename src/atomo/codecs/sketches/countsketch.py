"""Count-sketch: every entry, with a random sign, added to one of a few cells.

A sketch is linear, so that the sketches of several workers add up to the sketch of their sum. What
is read back is an entry plus the signed entries that share its cell: unbiased, with the variance
(||g||^2 - g_i^2) / cells. The usual sketch takes the median over several rows, which resists large
entries but is biased; the mean over rows is unbiased, and one row of all the cells has the same
variance as that mean for fewer hashes. So there is one row. At any ratio that saves much the noise
is larger than the gradient: it is here for comparison, and averages out only over many workers with
seeds of their own, which gives up the sum on the way.

Law: unbiased and summable. Bits: 32 an entry times `ratio`.

Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002; Ivkin et
al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_ratio
from atomo.codecs.dense.dense import Dense
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeds import draw_marked_seed, is_marked
from atomo.errors import CodecError
from atomo.kernels.sketch import add_cells, fill_cells

__all__ = ["CountSketch"]

MOST: Final = 2**31  # cells


@dataclass(frozen=True)
class Cells:
    """The sums in the cells that `seed` stands for."""

    seed: Int64[torch.Tensor, " seeds"]
    """Its low 16 bits are those of a gradient of so many entries, and of no other size near it."""
    sums: Float[torch.Tensor, " cells"]


@final
@dataclass(frozen=True)
class CountSketch(Codec[Cells]):
    """One row of ratio * n cells. Payloads of one seed add by their sums.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.1
    """Cells over entries. Lower => more compression, and more noise."""

    id: ClassVar[str] = "countsketch"
    default_payload_type: ClassVar[type[Cells]] = Cells
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    shared_seed: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED, Law.SUMMABLE})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Cells:
        entries = flat(gradient, self.id)
        seed = draw_marked_seed(generator, len(entries))
        sums = entries.new_zeros(self.cells(len(entries)), dtype=torch.float32)
        fill_cells(entries, seed, sums)
        if not sums.isfinite().all():
            raise CodecError("countsketch: the gradient holds NaN or infinity, or a sum overflows")
        return Cells(torch.tensor([seed]), sums)

    def cells(self, entries: int) -> int:
        """Returns the number of cells for a number of entries."""
        return min(max(1, int(self.ratio * entries)), MOST)

    @property
    def wire_codec(self) -> Dense:
        return Dense()

    def addend(self, payload: Cells) -> Float[torch.Tensor, " cells"]:
        return payload.sums

    def add_summed(
        self,
        payload: Cells,
        total: Float[torch.Tensor, " cells"],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        self.add_decoded(replace(payload, sums=total), out, scale)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        cells = self.cells(shape.numel())
        return Field(torch.int64, (1,)), Field(torch.float32, (cells,))

    def add_decoded(
        self, payload: Cells, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        seeds, sums = payload.seed.tolist(), payload.sums
        if len(sums) != self.cells(out.numel()) or not is_marked(seeds, out.numel()):
            raise CodecError(
                f"countsketch: {len(sums)} cells and seeds {seeds[:4]} for {out.numel()} entries"
            )
        with adding_to(out, self.id) as entries:
            add_cells(sums, seeds[0], entries, scale)
