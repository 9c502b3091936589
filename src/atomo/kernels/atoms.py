"""Sampling entries, for the device of the tensor. What both backends promise."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from atomo.kernels.cpu import atoms as cpu
from atomo.kernels.device import atoms as device

__all__ = ["add_cosines", "best_rate", "sample_entries"]


def best_rate(values: Float[Tensor, " n"], budget: float) -> float:
    """The rate t for which the probabilities min(1, |v_i| t) add up to `budget`.

    That is Algorithm 1 of ATOMO without its sort: of all probabilities with this sum, these make
    the variance least.

    Args:
        values: contiguous.
        budget: above 0.

    Returns:
        inf where `budget` is at least the number of entries that are not 0, all of which are then
        certain; NaN where an entry is not finite.
    """
    if values.device.type == "cpu":
        return float(cpu.best_rate(values.numpy(), budget))
    return device.best_rate(values, budget)


def sample_entries(values: Float[Tensor, " n"], rate: float, seed: int) -> Int64[Tensor, " k"]:
    """Each entry on its own, entry i with probability min(1, |v_i| rate) and never where it is 0.

    Args:
        values: contiguous and finite.
        rate: `rate` times the largest magnitude may be infinite.
        seed: of the counter-based random numbers, 0 to 2^63 - 1.

    Returns:
        Their places, ascending.
    """
    if values.device.type != "cpu":
        return device.sample_entries(values, rate, seed)
    return torch.from_numpy(cpu.sample_entries(values.numpy(), rate, np.uint64(seed)))


def add_cosines(
    out: Float[Tensor, " n"],
    indices: Int64[Tensor, " k"],
    values: Float[Tensor, " k"],
    waves: Float[Tensor, "block block"],
) -> None:
    """Adds values[i] times row (indices[i] mod block) of `waves` to block indices[i] // block.

    Args:
        out: contiguous; what lies behind its end is left out.
        indices: below len(out), rounded up to whole blocks. Checked by the caller.
        values: what each row is multiplied with.
        waves: one function on a block for each row.
    """
    if out.device.type == "cpu":
        cpu.add_cosines(out.numpy(), indices.numpy(), values.numpy(), waves.numpy())
    else:
        device.add_cosines(out, indices, values, waves)
