"""Random numbers as a pure function of (seed, index), without a generator's state.

The generator is SplitMix64 on whole tensors, and each (seed, index) owns a stream of it. Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64

__all__ = ["epoch_seed", "uniforms"]


def signed(word: int) -> int:
    """Returns the low 64 bits of `word` as torch's int64 holds them."""
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return word - (1 << 64) if word >> 63 else word


GAMMA = signed(0x9E37_79B9_7F4A_7C15)
FIRST = signed(0xBF58_476D_1CE4_E5B9)
SECOND = signed(0x94D0_49BB_1331_11EB)


def epoch_seed(run_seed: int, epoch: int) -> int:
    """Returns the seed of one epoch's augmentation, in [0, 2**63); the same on every worker.

    >>> epoch_seed(1, 0) == epoch_seed(0, 1)
    False
    """
    return int(mix(mix(word(run_seed)) + word(epoch))) & 0x7FFF_FFFF_FFFF_FFFF


def uniforms(
    seed: int, indices: Int64[torch.Tensor, " b"], count: int
) -> Float64[torch.Tensor, "b {count}"]:
    """Draws `count` numbers in [0, 1) for each index, each a pure function of (seed, index,
    position).
    """
    streams = mix(mix(word(seed)) + (indices + 1) * GAMMA)
    steps = torch.arange(1, count + 1, device=indices.device) * GAMMA
    return shifted(mix(streams[:, None] + steps), 11).double() * 2.0**-53


def word(value: int) -> Int64[torch.Tensor, ""]:
    """Returns any integer as a tensor, modulo 2**64."""
    return torch.tensor(signed(value))


def mix(z: Int64[torch.Tensor, "*shape"]) -> Int64[torch.Tensor, "*shape"]:
    """Applies SplitMix64's finaliser: a bijection in which every bit of the input reaches every
    output.
    """
    z = (z ^ shifted(z, 30)) * FIRST
    z = (z ^ shifted(z, 27)) * SECOND
    return z ^ shifted(z, 31)


def shifted(z: Int64[torch.Tensor, "*shape"], bits: int) -> Int64[torch.Tensor, "*shape"]:
    """Computes `z` >> `bits` without the copies of the sign bit that torch shifts in."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
