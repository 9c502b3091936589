"""Sampling entries as PyTorch operations. Contracts: `kernels/atoms`."""

import math

import torch
from torch import Generator, Tensor

__all__ = ["add_cosines", "best_rate", "sample_entries"]

PASSES = 100


def best_rate(values: Tensor, budget: float) -> float:
    """The rate for a budget."""
    sizes = values.double().abs()
    total, certain = float(sizes.sum()), 0
    if not math.isfinite(total):
        return math.nan
    if budget >= int(sizes.count_nonzero()):
        return math.inf
    rate = budget / total
    for _ in range(PASSES):
        more = int((sizes * rate >= 1).sum())
        if more == certain:
            break
        certain, rest = more, float(torch.where(sizes * rate < 1, sizes, 0).sum())
        rate = max(rate, (budget - certain) / rest) if rest else math.inf
    return rate


def sample_entries(values: Tensor, rate: float, seed: int) -> Tensor:
    """The entries that chance takes."""
    generator = Generator(values.device).manual_seed(seed)
    uniform = torch.rand(
        values.shape, generator=generator, dtype=torch.float64, device=values.device
    )
    return (uniform < values.double().abs() * rate).nonzero().squeeze(1)


def add_cosines(out: Tensor, indices: Tensor, values: Tensor, waves: Tensor) -> None:
    """Adds the blocks of some coefficients."""
    block = len(waves)
    places = (indices // block * block)[:, None] + torch.arange(block, device=out.device)
    added = values[:, None] * waves[indices % block]
    inside = places < len(out)
    out.index_add_(0, places[inside], added[inside])
