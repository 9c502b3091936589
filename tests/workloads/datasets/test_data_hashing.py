"""Random numbers as a function of (seed, index)."""

import pytest
import torch

from atomo.workloads.datasets.hashing import epoch_seed, uniforms

WORD = 2**64 - 1


def mix(z: int) -> int:
    """SplitMix64's finaliser with Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def reference(seed: int, index: int, position: int) -> float:
    stream = mix((mix(seed & WORD) + (index + 1) * 0x9E3779B97F4A7C15) & WORD)
    return (mix((stream + (position + 1) * 0x9E3779B97F4A7C15) & WORD) >> 11) * 2.0**-53


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1, 10**30])
def test_equals_splitmix64_in_plain_integers(seed):
    indices = torch.tensor([0, 1, 59_999, 2**40])
    expected = [[reference(seed, int(i), k) for k in range(3)] for i in indices]
    assert uniforms(seed, indices, 3).tolist() == expected


def test_is_uniform_and_uncorrelated_between_seeds_indices_and_positions():
    first, second = (uniforms(seed, torch.arange(20_000), 2) for seed in (7, 8))
    counts = first.flatten().mul(100).long().bincount(minlength=100)
    assert counts.sub(400).square().div(400).sum() < 150  # chi-square, 99 degrees: p = 7e-4
    columns = torch.stack([first[:, 0], first[:, 1], second[:, 0], first[:, 0].roll(1)])
    correlation = torch.corrcoef(columns) - torch.eye(4)
    assert correlation.abs().max() < 4 / 20_000**0.5


def test_an_epoch_seed_is_a_seed_that_torch_takes_and_differs_for_every_run_and_epoch():
    seeds = {epoch_seed(run, epoch) for run in range(-5, 15) for epoch in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
