"""Rand-k: entries drawn at random from a seed that all workers share.

No indices travel, and as all workers draw the same ones, their values can be added on the way.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from jaxtyping import Float, Int64
from torch import Generator, Size, Tensor

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.cost import Cost
from atomo.codecs.flat import add_flat, draw_seed, flat
from atomo.codecs.sparse.payload import INDEX, check_ratio, wanted
from atomo.errors import CodecError
from atomo.kernels import draws, select

__all__ = ["RandK"]

SIZES: Final = 65521
DRAW: Final = 16  # visits that drawing an entry is worth


@dataclass(frozen=True)
class Drawn:
    """Values of the entries that `seed` stands for."""

    seed: Int64[Tensor, " 1"]
    """Its low 16 bits are those of a gradient of so many entries, and of no other size near it."""
    values: Float[Tensor, " k"]


@final
@dataclass(frozen=True)
class RandK(Codec[Drawn]):
    """k = ratio * n distinct entries, each as likely as any other.

    The variance is (n / k - 1) ||g||^2 where it is unbiased. Payloads of one seed add by their
    values.

    Raises:
        ConfigError: the ratio is out of range.
    """

    ratio: float = 0.01
    """The share of the entries that is sent. Lower => more compression."""
    unbiased: bool = True
    """Whether values are scaled by n / k; if not, a memory keeps what was not sent."""

    id: ClassVar[str] = "randk"
    payload: ClassVar[type[Drawn]] = Drawn
    unit: ClassVar[Unit] = Unit.ENTRIES
    samples: ClassVar[bool] = True
    contracting: ClassVar[str] = "unbiased=False"
    shared_seed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self.id, self.ratio)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.SUMMABLE, Law.UNBIASED if self.unbiased else Law.CONTRACTION})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Drawn:
        entries = flat(gradient, self.id)
        try:
            select.check_finite(entries)
        except ValueError as error:
            raise CodecError(f"randk: the gradient holds {error}") from error
        k, seed = wanted(self.ratio, len(entries)), self.seed(len(entries), generator)
        indices = draws.draw(seed, k, len(entries), entries.device)
        values = entries[indices] * (len(entries) / k if self.unbiased else 1.0)
        if self.unbiased and not values.isfinite().all():
            raise CodecError("randk: scaled values overflow float32; scale the gradient down first")
        return Drawn(torch.tensor([seed]), values)

    def seed(self, entries: int, generator: Generator) -> int:
        """A new seed for a gradient of so many entries."""
        return draw_seed(generator) >> 16 << 16 | entries % SIZES

    def fields(self, shape: Size) -> tuple[Field, ...]:
        k = wanted(self.ratio, shape.numel())
        return Field(torch.int64, (1,)), Field(torch.float32, (k,))

    def cost(self, payload: Drawn, shape: Size) -> Cost:
        k = wanted(self.ratio, shape.numel())
        return super().cost(payload, shape) + Cost(DRAW * k, INDEX * k)

    def add_decoded(self, payload: Drawn, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        k = wanted(self.ratio, out.numel())
        seeds, values = payload.seed.tolist(), payload.values
        if values.shape != (k,) or [seed % 2**16 for seed in seeds] != [out.numel() % SIZES]:
            raise CodecError(
                f"randk: {len(values)} values and seeds {seeds[:4]}; not {k} of {out.numel()}"
            )

        def add(entries: Float[Tensor, " n"]) -> None:
            indices = draws.draw(seeds[0], k, len(entries), entries.device)
            select.add_at(entries, indices, values, scale)

        add_flat(out, self.id, add)

    def clear_sent(self, payload: Drawn, entries: Float[Tensor, " n"]) -> None:
        """Makes the entries zero that the payload carries, in place."""
        k = wanted(self.ratio, len(entries))
        entries[draws.draw(int(payload.seed), k, len(entries), entries.device)] = 0
