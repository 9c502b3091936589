"""Shared base of the summable codecs with a linear encoding that a shared seed defines.

All workers of a step draw the same map from one seed, so that the sum of their vectors is the
vector of the sum of their gradients, and an all-reduce of the vectors replaces an all-gather.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Field, Granularity
from atomo.codecs.dense.dense import Dense
from atomo.codecs.seeds import is_marked
from atomo.errors import CodecError

__all__ = ["SeededCodec", "SeededVector"]


@dataclass(frozen=True)
class SeededVector:
    """The image of a gradient under the linear map of a seed: the values of the drawn entries, or
    the sums of the cells of a sketch.
    """

    seed: Int64[torch.Tensor, " seeds"]
    """The low 16 bits are the number of entries of the gradient, modulo 65521."""
    values: Float[torch.Tensor, " k"]


class SeededCodec(Codec[SeededVector]):
    """Sends `count(n)` values for n entries. Abstract; subclasses are final."""

    default_payload_type: ClassVar[type[SeededVector]] = SeededVector
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    shared_seed: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @abstractmethod
    def count(self, entries: int) -> int:
        """Returns the number of values for a number of entries."""

    @property
    def wire_codec(self) -> Dense:
        return Dense()

    def addend(self, payload: SeededVector) -> Float[torch.Tensor, " k"]:
        return payload.values

    def add_summed(
        self,
        payload: SeededVector,
        total: Float[torch.Tensor, " k"],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        self.add_decoded(replace(payload, values=total), out, scale)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return Field(torch.int64, (1,)), Field(torch.float32, (self.count(shape.numel()),))

    def checked_seed(self, payload: SeededVector, entries: int) -> int:
        """Returns the seed of a payload for a gradient of this many entries.

        Raises:
            CodecError: the payload belongs to a gradient of another size.
        """
        seeds, count = payload.seed.tolist(), self.count(entries)
        if payload.values.shape != (count,) or not is_marked(seeds, entries):
            raise CodecError(
                f"{self.id}: {payload.values.numel()} values and seeds {seeds[:4]}; "
                f"{entries} entries have {count} values and a seed of their own"
            )
        return int(seeds[0])
