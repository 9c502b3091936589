"""Rand-k: entries drawn at random from a seed that all workers share.

No indices travel, and as all workers draw the same ones, their values can be added on the way.

Law: unbiased, with the variance (n / k - 1) ||g||^2, or with `unbiased=False` a contraction;
summable. Bits: 32 k / n an entry.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int64

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import as_codec_error, check_ratio
from atomo.codecs.cost import Cost
from atomo.codecs.dense.dense import Dense
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.seeds import draw_marked_seed, is_marked
from atomo.codecs.sparse.payload import INDEX, count_for
from atomo.errors import CodecError
from atomo.kernels import draws, select

__all__ = ["RandK"]

DRAW: Final = 16  # visits that drawing an entry is worth


@dataclass(frozen=True)
class Drawn:
    """Values of the entries that `seed` stands for."""

    seed: Int64[torch.Tensor, " 1"]
    """Its low 16 bits are those of a gradient of so many entries, and of no other size near it."""
    values: Float[torch.Tensor, " k"]


@final
@dataclass(frozen=True)
class RandK(Codec[Drawn]):
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
    default_payload_type: ClassVar[type[Drawn]] = Drawn
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    sparsifies: ClassVar[bool] = True
    contraction_setting: ClassVar[str] = "unbiased=False"
    shared_seed: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.SUMMABLE, Law.UNBIASED if self.unbiased else Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Drawn:
        entries = flat(gradient, self.id)
        with as_codec_error(self.id, "the gradient holds"):
            select.check_finite(entries)
        k, seed = self.count(len(entries)), draw_marked_seed(generator, len(entries))
        indices = draws.draw(seed, k, len(entries), entries.device)
        values = entries[indices].float() * (len(entries) / k if self.unbiased else 1.0)
        if self.unbiased and not values.isfinite().all():
            raise CodecError("randk: scaled values overflow float32; scale the gradient down first")
        return Drawn(torch.tensor([seed]), values)

    def count(self, entries: int) -> int:
        """Returns the number k of entries to send."""
        return count_for(self.ratio, entries)

    @property
    def wire_codec(self) -> Dense:
        return Dense()

    def addend(self, payload: Drawn) -> Float[torch.Tensor, " k"]:
        return payload.values

    def add_summed(
        self,
        payload: Drawn,
        total: Float[torch.Tensor, " k"],
        out: Float[torch.Tensor, "..."],
        scale: float = 1.0,
    ) -> None:
        self.add_decoded(replace(payload, values=total), out, scale)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        k = self.count(shape.numel())
        return Field(torch.int64, (1,)), Field(torch.float32, (k,))

    def cost(self, payload: Drawn, shape: torch.Size) -> Cost:
        k = self.count(shape.numel())
        return super().cost(payload, shape) + Cost(DRAW * k, INDEX * k)

    def add_decoded(
        self, payload: Drawn, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        k = self.count(out.numel())
        seeds, values = payload.seed.tolist(), payload.values
        if values.shape != (k,) or not is_marked(seeds, out.numel()):
            raise CodecError(
                f"randk: {len(values)} values and seeds {seeds[:4]}; not {k} of {out.numel()}"
            )
        with adding_to(out, self.id) as entries:
            indices = draws.draw(seeds[0], k, len(entries), entries.device)
            select.add_at(entries, indices, values, scale)

    def clear_sent(self, payload: Drawn, entries: Float[torch.Tensor, " n"]) -> None:
        k = self.count(len(entries))
        entries[draws.draw(int(payload.seed), k, len(entries), entries.device)] = 0
