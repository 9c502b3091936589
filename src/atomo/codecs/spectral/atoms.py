"""Atomic sparsification: which atoms of a decomposition to send, and how often.

Write a gradient as g = sum_i c_i a_i over atoms of norm 1. Sending atom i with probability p_i,
scaled by c_i / p_i, is unbiased for all p_i > 0, and for orthogonal atoms its variance is
sum_i c_i^2 (1 / p_i - 1). The basis is free: singular vectors, coordinates, cosines.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from atomo.errors import ConfigError

__all__ = ["probabilities", "relative_probabilities", "variance"]


def probabilities(
    coefficients: Float[torch.Tensor, "*b r"], budget: float
) -> Float[torch.Tensor, "*b r"]:
    """Computes the probabilities of least variance with the sum `budget` (Algorithm 1), for one
    decomposition or each of a batch.

    With |c| in descending order and a budget s, Algorithm 1 makes the largest atom certain and
    subtracts 1 from s, again and again, until the other atoms can share the rest of s in proportion
    to their magnitude with no share above 1: until |c_i| s <= sum_{j >= i} |c_j|. Clipping the
    shares at 1 without a new division would leave a part of the budget unused, with 2 to 32 times
    the variance on spectra that fall off fast.

    Args:
        coefficients: in any order and of any sign.
        budget: expected number of atoms to send, above 0. Lower => more compression. From the
            number of non-zero coefficients on, all of these are certain.

    Returns:
        float64, one for each coefficient; 0 exactly where the coefficient is 0.

    Raises:
        ConfigError: the budget is not above 0.
    """
    if not budget > 0:
        raise ConfigError(f"the expected number of atoms must be above 0, got {budget}")
    sizes = coefficients.double().abs()
    if not sizes.numel():
        return sizes
    # The loop of Algorithm 1 for all i together. When the loop reaches an entry, all larger entries
    # have probability 1; `tails` is the sum of the entry and all smaller entries.
    ascending, _ = sizes.sort()
    # Summed from the small end, so that a long tail is not lost below the rounding of the head.
    tails = ascending.cumsum(-1)
    larger = torch.arange(sizes.shape[-1] - 1, -1, -1, device=sizes.device)
    # Once the condition holds it holds for all smaller entries, so counting finds where it stops.
    # The count stays on the device, like all tensors here: reading it would wait for the device.
    certain = (ascending * (budget - larger) > tails).sum(-1, keepdim=True)
    shared = tails.gather(-1, (sizes.shape[-1] - 1 - certain).clamp(min=0))
    # Every certain atom has a share above 1 here, by the condition for it.
    shares = (sizes * ((budget - certain.double()) / shared)).clamp(max=1)
    few = budget >= sizes.count_nonzero(-1)[..., None]
    return torch.where(few, (sizes > 0).double(), shares)


def relative_probabilities(
    coefficients: Float[torch.Tensor, "*b r"],
) -> Float[torch.Tensor, "*b r"]:
    """Computes |c_i| over the largest |c|, in float64: the largest atom is certain, and the budget
    follows from the coefficients.
    """
    sizes = coefficients.double().abs()
    if not sizes.numel():
        return sizes
    return torch.where(sizes > 0, sizes / sizes.amax(-1, keepdim=True), 0.0)


def variance(
    coefficients: Float[torch.Tensor, " r"], probabilities: Float[torch.Tensor, " r"]
) -> float:
    """Returns E||decoded - g||^2 for orthogonal atoms: sum_i c_i^2 (1 / p_i - 1) over the non-zero
    c_i.
    """
    squares = coefficients.double().square()
    return float(torch.where(squares > 0, squares * (1 / probabilities.double() - 1), 0.0).sum())
