"""SketchML: values to quantile buckets, bucket numbers to a MinMaxSketch, keys to gaps.

The quantiles of either sign make 256 buckets, each decoded to the mean of its entries. Buckets lie
in 8 groups of 32. The payload has the group of each entry, and its number in the group through two
rows of hashed cells: a cell keeps the least number of all entries that share it, and an entry reads
the larger of its two cells. Keys are the Rice-coded places of the entries that are not zero.

Law: contraction. Decoding keeps signs and never overestimates a bucket number, so an entry is read
as one of the 32 buckets of its group, its own or a smaller one; and a bucket decodes to its mean,
or to twice its lower end where the mean is above that, as with the outliers. So no entry is farther
off than zero is. Bits: 4 + 16 `cells` an entry packed, 5.7 by default when coded.

Jiang et al., "SketchML: Accelerating Distributed Machine Learning with Data Sketches", SIGMOD 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int16, Int32, Int64, UInt8

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import require_finite
from atomo.codecs.cost import VISITS, DecodeCost, read_count
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeds import draw_seed
from atomo.errors import ConfigError
from atomo.kernels import entropy, quantiles, rice
from atomo.kernels.clusters import packed_bytes

__all__ = ["SketchML", "train_buckets"]

SIGN: Final = quantiles.HALVES // 2  # halves from here on are those of negative numbers
INFINITE: Final = 0x7F80  # the upper half of infinity
SMALLEST: Final = 2.0**-133  # with an upper half that is not zero
GATHERED: Final = 8  # bytes an entry, where some are zero
FIXED: Final = 2**19  # visits, and bytes: tables of a block, however few entries there are
QUANTILES: Final = quantiles.SKETCH_BUCKETS // 2  # of either sign


@dataclass(frozen=True)
class Sketched:
    """The positions of the non-zero entries, their groups, and a sketch of their buckets."""

    head: Int64[torch.Tensor, " head"]
    """The number of non-zero entries, and the seed of the hashes."""
    places: UInt8[torch.Tensor, " bytes"]
    """The Rice-coded positions of the non-zero entries or of the zeros: the smaller set."""
    groups: Int32[torch.Tensor, " words"]
    """The groups after `kernels.entropy.compress`; empty without entries, as `cells` is."""
    cells: Int32[torch.Tensor, " more_words"]
    cell_count: Int64[torch.Tensor, " counts"]
    means: Float[torch.Tensor, " buckets"]
    """The mean of each bucket: 256 of negative entries by magnitude, then 256 of positive entries.
    """


@final
@dataclass(frozen=True)
class SketchML(Codec[Sketched]):
    """256 quantiles for each sign, in 8 groups, which bound the error of a collision.

    Bucket ends are rounded to seven bits after the leading bit, so that a table maps an entry to
    its bucket. In long gradients, quantiles and means come from an eighth of the entries. Entries
    below 2^-133 count as zeros. Gradients on other devices are copied to the host.

    Raises:
        ConfigError: a setting is out of range.
    """

    cells: float = 0.2
    """Cells in each of the two rows for each entry that is not zero. Lower => more compression,
    and smaller values where entries share their cells."""

    id: ClassVar[str] = "sketchml"
    default_payload_type: ClassVar[type[Sketched]] = Sketched
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.cells <= quantiles.MOST_SHARE:
            raise ConfigError(
                f"sketchml: cells must be above 0 and at most {quantiles.MOST_SHARE}, "
                f"got {self.cells}"
            )

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sketched:
        return self.of(flat(gradient, self.id).cpu(), None, draw_seed(generator))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Sketched:
        if not residual.is_contiguous() or residual.device.type != "cpu":
            return super().encode_residual(gradient, residual, generator)
        entries = flat(residual.add_(gradient), self.id)
        return self.of(entries, entries, draw_seed(generator))

    def of(
        self,
        values: Float[torch.Tensor, " n"],
        residual: Float[torch.Tensor, " n"] | None,
        seed: int,
    ) -> Sketched:
        """Returns the payload of `values`, and subtracts the decoded payload from `residual`, in
        place.
        """
        chosen, places = nonzero(values)
        present = values if chosen is None else values[chosen]
        table, means = train_buckets(present)
        head = torch.tensor([len(present), seed])
        if not len(present):
            none = torch.empty(0, dtype=torch.int32)
            return Sketched(head, places, none, none, torch.tensor([0]), means)
        # `present` shares the memory of `residual`, or is a selection of it.
        remainder = None if residual is None else present
        groups, cells = quantiles.sketch(present, table, self.cells, seed, means, remainder)
        if residual is not None and chosen is not None:
            residual[chosen] = present
        packed, count = entropy.compress(groups), torch.tensor([len(cells)])
        return Sketched(head, places, packed, entropy.compress(cells), count, means)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        symbols = packed_bytes(entries) // 4 + 1 + entropy.OVERHEAD
        cells = quantiles.most_cells(entries, self.cells) // 4 + 1 + entropy.OVERHEAD
        return (
            Field(torch.int64, (2,)),
            Field(torch.uint8, (rice.most_bytes(entries, entries // 2),)),
            Field(torch.int32, (symbols,)),
            Field(torch.int32, (cells,)),
            Field(torch.int64, (1,)),
            Field(torch.float32, (quantiles.SKETCH_BUCKETS,)),
        )

    def cost(self, payload: Sketched, shape: torch.Size) -> DecodeCost:
        entries = shape.numel()
        block = DecodeCost(FIXED, FIXED)
        if read_count(payload.head) == entries:  # no entry is zero: nothing is gathered
            return super().cost(payload, shape) + block
        return (
            super().cost(payload, shape) + DecodeCost(VISITS * entries, GATHERED * entries) + block
        )

    def add_decoded(
        self, payload: Sketched, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            if payload.head.shape != (2,) or payload.cell_count.shape != (1,):
                raise ValueError(f"a head of {len(payload.head)} numbers")
            count = int(payload.head[0])
            chosen = places_of(payload.places, count, len(entries))
            if not count:
                return
            direct = chosen is None and entries.device.type == "cpu"
            present = entries if direct else torch.zeros(count)
            self.add_nonzero(payload, count, present, scale)
            if not direct:
                index = slice(None) if chosen is None else chosen.to(entries.device)
                entries[index] += present.to(entries.device)

    def add_nonzero(
        self, payload: Sketched, count: int, present: Float[torch.Tensor, " k"], scale: float
    ) -> None:
        """Adds the decoded values to the joined non-zero entries, in place.

        Raises:
            ValueError: the payload does not have this number of entries.
        """
        max_cells, cells = quantiles.most_cells(count, self.cells), int(payload.cell_count)
        if not 0 < cells <= max_cells:
            raise ValueError(f"{cells} cells for {count} entries; at most {max_cells}")
        quantiles.add_sketched(
            entropy.decompress(payload.groups, packed_bytes(count)),
            entropy.decompress(payload.cells, cells),
            self.cells,
            int(payload.head[1]),
            payload.means.cpu(),
            present,
            scale,
        )


def nonzero(
    values: Float[torch.Tensor, " n"],
) -> tuple[Bool[torch.Tensor, " n"] | None, UInt8[torch.Tensor, " bytes"]]:
    """Finds the entries with an upper half other than zero (None: all), and the Rice code of their
    positions or of the other positions.

    Raises:
        CodecError: NaN or infinity was found.
    """
    smallest, greatest = quantiles.extremes(values)
    require_finite("sketchml", greatest < INFINITE)
    if smallest:
        return None, rice.encode(torch.empty(0, dtype=torch.int64), len(values))
    residual = values.abs() >= SMALLEST
    fewer = residual if 2 * int(residual.count_nonzero()) <= len(values) else ~residual
    return residual, rice.encode(fewer.nonzero().squeeze(1), len(values))


def places_of(
    data: UInt8[torch.Tensor, " bytes"], count: int, entries: int
) -> Int64[torch.Tensor, " count"] | None:
    """Reads the positions of the `count` entries; None stands for all positions.

    Raises:
        NotIndices: the bytes are no result of `nonzero`.
    """
    if not 0 <= count <= entries:
        raise rice.NotIndices(f"{count} of {entries} entries")
    if 2 * count <= entries:
        return rice.decode(data, count, entries)
    zeros = rice.decode(data, entries - count, entries)
    if not len(zeros):
        return None
    residual = torch.ones(entries, dtype=torch.bool)
    residual[zeros] = False
    return residual.nonzero().squeeze(1)


def train_buckets(
    values: Float[torch.Tensor, " k"],
) -> tuple[Int16[torch.Tensor, " halves"], Float[torch.Tensor, " 512"]]:
    """Builds the table of groups and buckets of the halves, and the mean of each bucket."""
    # One histogram over the upper halves of the floats serves twice: halves rise with magnitude, so
    # its running sum gives the quantiles and its sums the means, without sorting the gradient.
    counts, sums = quantiles.histogram(values)
    table, means = np.zeros(quantiles.HALVES, np.uint16), np.zeros(quantiles.SKETCH_BUCKETS)
    for start, first, sign in ((SIGN, 0, -1.0), (0, QUANTILES, 1.0)):
        seen, added = counts[start : start + SIGN], sign * sums[start : start + SIGN]
        numbers = first + quantile_of(seen)
        within = numbers % quantiles.WITHIN
        table[start : start + SIGN] = numbers // quantiles.WITHIN << 8 | within
        used, sizes = sizes_of(numbers, seen, added)
        means[used] = sign * sizes
    return torch.from_numpy(table.view(np.int16)), torch.from_numpy(means.astype(np.float32))


def quantile_of(seen: Int64[np.ndarray, " half"]) -> Int64[np.ndarray, " half"]:
    """Returns the number of the quantile of each upper half of one sign, from the counts of the
    halves.
    """
    before = np.cumsum(seen) - seen / 2  # entries below the middle of each half
    numbers: Any = (before * (QUANTILES / max(1, int(seen.sum())))).astype(np.int64)
    return np.asarray(numbers.clip(0, QUANTILES - 1))


def sizes_of(
    numbers: Int64[np.ndarray, " half"],
    seen: Int64[np.ndarray, " half"],
    added: Float64[np.ndarray, " half"],
) -> tuple[Int64[np.ndarray, " used"], Float64[np.ndarray, " used"]]:
    """Returns the buckets of the halves, and the decoded magnitude of each bucket.

    A bucket with no half but zero is left out: it is never read.
    """
    total, among = (np.bincount(numbers, part, quantiles.SKETCH_BUCKETS) for part in (added, seen))
    used, lowest = np.unique(numbers[1:INFINITE], return_index=True)
    halves = (1 + lowest).astype(np.uint32)  # the lowest of each bucket
    low = (halves << 16).view(np.float32).astype(np.float64)
    mean = np.where(among[used] > 0, total[used] / among[used].clip(1), low)
    # A decoded value of at most twice the lower end keeps every entry of the bucket, and of larger
    # buckets that are read as this one, no farther off than zero is.
    return used, np.minimum(mean, 2 * low)
