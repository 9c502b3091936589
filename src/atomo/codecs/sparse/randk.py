"""Rand-k: entries drawn at random from a seed that all workers share.

No indices are sent. All workers draw the same indices, so that an all-reduce can sum the values.

Law: unbiased, with the variance (n / k - 1) ||g||^2, or with `unbiased=False` a contraction;
summable. Bits: 32 k / n an entry.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Law
from atomo.codecs.checks import as_codec_error, check_ratio
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeded import SeededCodec, SeededVector
from atomo.codecs.seeds import draw_marked_seed
from atomo.codecs.sparse.payload import INDEX, count_for
from atomo.errors import CodecError
from atomo.kernels import draws
from atomo.kernels import selection as select

__all__ = ["RandK"]

DRAW: Final = 16  # the cost of drawing an index, in visits of an entry


@final
@dataclass(frozen=True)
class RandK(SeededCodec):
    """k = ratio * n distinct entries, each as likely as any other.

    Payloads of one seed add by their values.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.01
    """The share of the entries that is sent. Lower => more compression."""
    unbiased: bool = True
    """True to scale values by n / k; otherwise the unsent entries are the memory's residual."""

    id: ClassVar[str] = "randk"
    sparsifies: ClassVar[bool] = True
    contraction_setting: ClassVar[str] = "unbiased=False"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.SUMMABLE, Law.UNBIASED if self.unbiased else Law.CONTRACTION})

    def encode(
        self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator
    ) -> SeededVector:
        entries = flat(gradient, self.id)
        with as_codec_error(self.id, "the gradient holds"):
            select.check_finite(entries)
        k, seed = self.count(len(entries)), draw_marked_seed(generator, len(entries))
        indices = draws.draw(seed, k, len(entries), entries.device)
        values = entries[indices].float() * (len(entries) / k if self.unbiased else 1.0)
        if self.unbiased and not values.isfinite().all():
            raise CodecError("randk: scaled values overflow float32; scale the gradient down first")
        return SeededVector(torch.tensor([seed]), values)

    def count(self, entries: int) -> int:
        """Returns the number k of entries to send."""
        return count_for(self.ratio, entries)

    def cost(self, payload: SeededVector, shape: torch.Size) -> DecodeCost:
        k = self.count(shape.numel())
        return super().cost(payload, shape) + DecodeCost(DRAW * k, INDEX * k)

    def add_decoded(
        self, payload: SeededVector, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        k, seed = self.count(out.numel()), self.checked_seed(payload, out.numel())
        with adding_to(out, self.id) as entries:
            indices = draws.draw(seed, k, len(entries), entries.device)
            select.add_at(entries, indices, payload.values, scale)

    def clear_sent(self, payload: SeededVector, entries: Float[torch.Tensor, " n"]) -> None:
        k = self.count(len(entries))
        entries[draws.draw(int(payload.seed), k, len(entries), entries.device)] = 0
