"""Which atoms of a decomposition are sent, and what each is divided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Float64

from atomo.codecs.spectral.atoms import probabilities, relative_probabilities

__all__ = ["Selection"]


@final
@dataclass(frozen=True)
class Selection:
    """A rule, for one decomposition or for each of a batch. It never waits for the device."""

    rank: int
    """Expected number of atoms, or of the largest; 0: p_i = c_i / c_1."""
    largest: bool
    """Whether the largest are taken, and none by chance."""
    unbiased: bool
    """Whether atoms are divided by their probabilities. If not, a memory needs a step closer to the
    gradient: atoms are sent at their own size, and at least one of them."""

    def choose(
        self, coefficients: Float[torch.Tensor, "*b n"], uniform: Float64[torch.Tensor, "*b n"]
    ) -> tuple[Bool[torch.Tensor, "*b n"], Float[torch.Tensor, "*b n"]]:
        """Which atoms to send, and what each is divided by.

        Args:
            coefficients: at least 0.
            uniform: from [0, 1), on the same device.
        """
        chances = self.chances(coefficients)
        drawn = uniform < chances
        if self.unbiased:
            return drawn, chances
        likeliest = torch.zeros_like(drawn).scatter_(-1, chances.topk(1).indices, True)
        alone = likeliest & (chances > 0) & ~drawn.any(-1, keepdim=True)
        return drawn | alone, torch.ones_like(chances)

    def chances(self, coefficients: Float[torch.Tensor, "*b n"]) -> Float[torch.Tensor, "*b n"]:
        """The probability of each atom."""
        if self.largest:
            first = coefficients.topk(min(self.rank, coefficients.shape[-1])).indices
            chosen = torch.zeros_like(coefficients).scatter_(-1, first, 1.0)
            return chosen * (coefficients > 0)
        if self.rank == 0:
            return relative_probabilities(coefficients)
        return probabilities(coefficients, float(self.rank))
