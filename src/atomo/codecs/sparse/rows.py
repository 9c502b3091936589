"""Rows: the non-zero rows of a matrix, exact or encoded by another codec.

For embeddings, of which a batch touches few rows: the other rows cost nothing.

Law: lossless, and so unbiased and a contraction, as far as the codec of the values is. Bits: 32 for
each entry of the non-zero rows, and b for each of these rows, as in `topk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import as_codec_error
from atomo.codecs.cost import DecodeCost
from atomo.codecs.dense.dense import DENSE, Entries
from atomo.codecs.flat import flat
from atomo.codecs.rows import RowGradient
from atomo.codecs.settings import Inner
from atomo.codecs.sparse.payload import Sparse, index_cost, index_fields, indices_of
from atomo.core.devices import to_device
from atomo.errors import CodecError
from atomo.kernels import rice

__all__ = ["Rows"]

LAWS = frozenset({Law.LOSSLESS, Law.UNBIASED, Law.CONTRACTION})


@final
@dataclass(frozen=True)
class Rows(Codec[Sparse]):
    """All non-zero rows; a row is a slice along the first dimension."""

    values: Inner[Codec[Any]] = Inner(DENSE)
    """Codes the rows that are sent, joined."""

    id: ClassVar[str] = "rows"
    default_payload_type: ClassVar[type[Sparse]] = Sparse
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER
    near_lossless: ClassVar[bool] = True
    encodes_rows: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return self.values.laws & LAWS

    @property
    def error_bound(self) -> float:
        return self.values.error_bound

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        return {"values": self.values}

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sparse:
        matrix = flat(gradient, self.id).view(sides(gradient.shape))
        rows = (matrix != 0).any(1).nonzero().squeeze(1)
        present = matrix if len(rows) == len(matrix) else matrix[rows]
        return self.encode_rows(RowGradient(rows, present, matrix.shape), generator)

    def encode_accumulated(
        self, residual: Float[torch.Tensor, "*s"], generator: torch.Generator
    ) -> Sparse:
        # Not a view of the residual, which becomes zero.
        payload = self.encode(residual.clone(), generator)
        self.add_decoded(payload, residual, -1.0)
        return payload

    def encode_rows(self, gradient: RowGradient, generator: torch.Generator) -> Sparse:
        entries = gradient.values.reshape(-1)
        with as_codec_error(self.id, "values:"):
            # No codec takes an empty vector: a zero stands for it.
            values = self.values.encode(
                entries if len(entries) else entries.new_zeros(1), generator
            )
        packed = rice.encode(gradient.rows, gradient.shape[0])
        return Sparse(torch.tensor([len(gradient.rows)]), packed, values)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        values = self.values.fields(torch.Size([shape.numel()]))
        height, _ = sides(shape)
        return *index_fields(height, height), *values

    def cost(self, payload: Sparse, shape: torch.Size) -> DecodeCost:
        height, width = sides(shape)
        count, indices = index_cost(payload, height, width)
        values = self.values.cost(payload.values, torch.Size([max(1, count * width)]))
        return super().cost(payload, shape) + indices + values

    def add_decoded(
        self, payload: Sparse, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        height, width = sides(out.shape)
        matrix = out.reshape(height, width)  # a view where `out` is contiguous
        with as_codec_error(self.id):
            rows = to_device(indices_of(payload, height, height), out.device)
            values = self.decoded(payload.values, len(rows), matrix)
        if len(rows) == height:  # the values may be a view of `out` then
            matrix.add_(values, alpha=scale)
        else:
            matrix.index_add_(0, rows, values, alpha=scale)
        if not out.is_contiguous():
            out.copy_(matrix.view(out.shape))

    def decoded(
        self, coded: Any, rows: int, like: Float[torch.Tensor, "h w"]
    ) -> Float[torch.Tensor, "r w"]:
        """Decodes a number of rows with the codec of the values."""
        size = rows * like.shape[1]
        if not rows:  # any tensor stands for no rows
            return like.new_empty(0, like.shape[1])
        if isinstance(coded, Entries):
            if len(coded.values) != size:
                raise CodecError(f"{len(coded.values)} values for {size} entries")
            return to_device(coded.values, like.device).view(rows, -1)
        values = like.new_zeros(size)
        self.values.add_decoded(coded, values)
        return values.view(rows, -1)


def sides(shape: torch.Size) -> tuple[int, int]:
    """Returns the height and the width of a gradient as rows; a scalar is one row of one entry."""
    height = shape[0] if shape else 1
    return height, shape.numel() // height
