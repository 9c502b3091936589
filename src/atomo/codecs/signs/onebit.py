"""1-bit SGD: the sign of each entry, decoded to the mean of all entries of that sign.

Law: contraction, as these are the best two values for the signs. Bits: 1 an entry, and 64 for each
column.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known, require_finite
from atomo.codecs.flat import adding_to, flat
from atomo.kernels import sign

__all__ = ["OneBit"]

SCOPES: Final = ("column", "layer")


@dataclass(frozen=True)
class Halves:
    """One of two values: the bit is 1 for a negative entry, -0.0 included, and 0 for all others."""

    words: Int32[torch.Tensor, " words"]
    means: Float[torch.Tensor, " means"]
    """The mean of the entries with bit 0, then that of the entries with bit 1; a pair for each
    column, or one pair."""


@final
@dataclass(frozen=True)
class OneBit(Codec[Halves]):
    """The best two values for the signs of a column or layer. Needs a residual memory.

    A column in the paper has the weights of one unit. Here the units are the first dimension,
    so that a parameter of shape (out, ...) has `out` columns.

    Raises:
        ConfigError: a setting is out of range.
    """

    scope: str = "column"
    """The group of entries that shares two means: "column", as published, or "layer"."""

    id: ClassVar[str] = "onebit"
    default_payload_type: ClassVar[type[Halves]] = Halves
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER
    suits_adam: ClassVar[bool] = True
    batch_decodes_on_gpu: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.id, "scope", self.scope, SCOPES)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Halves:
        del generator  # deterministic
        return self.of(flat(gradient, self.id), None, self.row(gradient.shape))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Halves:
        if not residual.is_contiguous():
            return super().encode_residual(gradient, residual, generator)
        entries, row = flat(residual, self.id), self.row(residual.shape)
        payload = self.of(entries, flat(gradient, self.id), row)
        sign.add_row_signs(payload.words, payload.means, row, -1.0, entries)
        return payload

    def of(
        self, values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, row: int
    ) -> Halves:
        """Adds `added` to `values`, in place, and returns the payload of the sum."""
        words, means = sign.add_pack_means(values, added, row)
        require_finite(self.id, bool(means.isfinite().all()))
        return Halves(words, means)

    def row(self, shape: torch.Size) -> int:
        """Returns the number of entries that share two means."""
        columns = shape[0] if self.scope == "column" and len(shape) > 1 else 1
        return max(1, shape.numel() // max(1, columns))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return (
            Field(torch.int32, (sign.word_count(entries),)),
            Field(torch.float32, (2 * -(-entries // self.row(shape)),)),
        )

    def add_decoded(
        self, payload: Halves, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Halves], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        # Two means are those of the whole layer, with any setting, as in the first frame format.
        for whole, same in groupby(payloads, lambda payload: len(payload.means) == 2):
            row, halves = out.numel() if whole else self.row(out.shape), [*same]
            words, means = [half.words for half in halves], [half.means for half in halves]
            with adding_to(out, self.id) as entries:
                sign.add_all_row_signs(words, means, row, scale, entries)
