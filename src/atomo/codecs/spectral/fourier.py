"""ATOMO in a basis of cosines: a gradient that is smooth along the parameters needs few atoms.

The flat gradient is cut into blocks of a fixed length, the last one filled up with zeros, and each
block goes through an orthonormal cosine transform (DCT-II). Its coefficients are sampled like the
entries of `entrywise`. The error of the coefficients is the error of the gradient and of the zeros
after its end: the variance is the closed form of `atoms.variance`, or a little less.

Law: unbiased. Bits: those of `entrywise`.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018,
name the Fourier basis as future work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.spectral.entrywise import atoms_for, check_budget
from atomo.codecs.spectral.sample import (
    Sample,
    draw_sample,
    read_sample,
    sample_cost,
    sample_fields,
)
from atomo.errors import ConfigError
from atomo.kernels.atoms import add_cosines, best_rate

__all__ = ["Fourier", "cosines", "transform"]

WAVE = 32  # bytes for each entry of the cosines, while they are computed
LARGEST_BLOCK = 1024  # entries; a block squared is the matrix that a stranger may ask for


@final
@dataclass(frozen=True)
class Fourier(Codec[Sample]):
    """Cosine coefficients drawn one by one, unbiased.

    Raises:
        ConfigError: a setting is out of range.
    """

    budget: float = 0.01
    """Expected number of coefficients sent: a share of all of them below 1, but one at least, or a
    number from 1 on. Lower => more compression."""
    block: int = 64
    """Entries transformed together. Time grows with it."""

    id: ClassVar[str] = "fourier"
    default_payload_type: ClassVar[type[Sample]] = Sample
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.id, self.budget)
        if not 2 <= self.block <= LARGEST_BLOCK:
            raise ConfigError(f"fourier: block must be in 2..{LARGEST_BLOCK}, got {self.block}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sample:
        coefficients = transform(flat(gradient, self.id), self.block)
        rate = best_rate(coefficients, atoms_for(self.budget, len(coefficients)))
        return draw_sample(coefficients, rate, generator, self.id, gradient.numel())

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return sample_fields(padded(shape.numel(), self.block))

    def cost(self, payload: Sample, shape: torch.Size) -> DecodeCost:
        atoms = padded(shape.numel(), self.block)
        # The cosines are computed for the first tensor only: their work is not that of each.
        own_cost = sample_cost(payload, atoms, self.block) + DecodeCost(0, WAVE * self.block**2)
        return super().cost(payload, shape) + own_cost

    def add_decoded(
        self, payload: Sample, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        atoms = padded(out.numel(), self.block)
        places, values = read_sample(payload, atoms, self.id, out.numel())
        waves = cosines(self.block).to(out.device)
        with adding_to(out, self.id) as entries:
            add_cosines(entries, places.to(out.device), scale * values.to(out.device), waves)


def padded(entries: int, block: int) -> int:
    """Pads the entries with zeros to whole blocks."""
    return -(-entries // block) * block


def transform(entries: Float[torch.Tensor, " n"], block: int) -> Float[torch.Tensor, " padded"]:
    """Computes the cosine coefficients of each block."""
    waves = cosines(block).to(entries.device)
    whole = len(entries) // block * block
    transformed = entries.new_empty(padded(len(entries), block)).view(-1, block)
    torch.mm(entries[:whole].view(-1, block), waves.T, out=transformed[: whole // block])
    if whole < len(entries):  # of the last block; the zeros that fill it up add nothing
        transformed[-1] = waves[:, : len(entries) - whole] @ entries[whole:]
    return transformed.view(-1)


@lru_cache(maxsize=8)
def cosines(block: int) -> Float[torch.Tensor, "block block"]:
    """Returns the orthonormal functions of the DCT-II on `block` points, one in each row."""
    place = torch.arange(block, dtype=torch.float64)
    waves = torch.cos(math.pi / block * place[:, None] * (place + 0.5)) * math.sqrt(2 / block)
    waves[0] /= math.sqrt(2)
    return waves.float()
