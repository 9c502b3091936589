"""Sampling entries as PyTorch operations. Contracts: `kernels/atoms`."""

import math

import torch
from torch import Tensor

from atomo.kernels.atoms import TILE
from atomo.kernels.random_words.reference import mix, random_words, shifted

__all__ = ["add_cosines", "best_rate", "sample_entries"]

PASSES = 100


def best_rate(values: Tensor, budget: float) -> float:
    sizes = values.double().abs()
    total, certain = float(sizes.sum()), 0
    if not math.isfinite(total):
        return math.nan
    if budget >= int(sizes.count_nonzero()):
        return math.inf
    rate = budget / total
    for _ in range(PASSES):  # Newton's method, as `cpu` explains it
        reached = int((sizes * rate >= 1).sum())
        if reached == certain:
            break
        certain, uncertain = reached, float(torch.where(sizes * rate < 1, sizes, 0).sum())
        rate = max(rate, (budget - certain) / uncertain) if uncertain else math.inf
    return rate


def sample_entries(values: Tensor, rate: float, seed: int) -> Tensor:
    starts = torch.arange(0, len(values), TILE, device=values.device)
    keys = mix(mix(starts) ^ seed)
    places = torch.arange(TILE, device=values.device)
    low_bits = shifted(mix(keys[:, None] + places), 11).double() * 2.0**-53
    uniform = ((random_words(keys, TILE) >> 8).double() + low_bits) / 2.0**24
    chances = values.double().abs() * rate
    return (uniform.view(-1)[: len(values)] < chances).nonzero().squeeze(1)


def add_cosines(out: Tensor, indices: Tensor, values: Tensor, waves: Tensor) -> None:
    block = len(waves)
    # index_add_ takes each of several rows for the same block, as an assignment would not.
    places = (indices // block * block)[:, None] + torch.arange(block, device=out.device)
    added = values[:, None] * waves[indices % block]
    inside = places < len(out)
    out.index_add_(0, places[inside], added[inside])
