"""Choice of the atoms of a decomposition to send, and of the divisor of each."""

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
    """True to take the largest atoms, without chance."""
    unbiased: bool
    """True to divide atoms by their probabilities. Otherwise atoms are sent at their own size, and
    at least one atom, as a memory needs a step closer to the gradient."""

    def choose(
        self, coefficients: Float[torch.Tensor, "*b n"], uniform: Float64[torch.Tensor, "*b n"]
    ) -> tuple[Bool[torch.Tensor, "*b n"], Float[torch.Tensor, "*b n"]]:
        """Chooses the atoms to send, and the divisor of each.

        Args:
            coefficients: at least 0.
            uniform: from [0, 1), on the same device.
        """
        chances = self.chances(coefficients)
        # An unbiased draw may be empty and stands for zero: a second draw would bias the gradient.
        drawn = uniform < chances
        if self.unbiased:
            return drawn, chances
        likeliest = torch.zeros_like(drawn).scatter_(-1, chances.topk(1).indices, True)
        alone = likeliest & (chances > 0) & ~drawn.any(-1, keepdim=True)
        return drawn | alone, torch.ones_like(chances)

    def chances(self, coefficients: Float[torch.Tensor, "*b n"]) -> Float[torch.Tensor, "*b n"]:
        """Returns the probability of each atom."""
        if self.largest:
            first = coefficients.topk(min(self.rank, coefficients.shape[-1])).indices
            chosen = torch.zeros_like(coefficients).scatter_(-1, first, 1.0)
            return chosen * (coefficients > 0)
        if self.rank == 0:
            return relative_probabilities(coefficients)
        return probabilities(coefficients, float(self.rank))
