"""Two levels by Lloyd's algorithm, as PyTorch operations. Contracts: `kernels.lloyd`."""

import torch
from torch import Tensor

from atomo.kernels.lloyd import MOST_ROUNDS

__all__ = ["two_levels"]

ASKED = 8  # rounds after which the host asks if all runs are settled


def two_levels(values: Tensor, run: int) -> Tensor:
    run = min(run, len(values))
    magnitudes = torch.nn.functional.pad(values.abs().double(), (0, -len(values) % run), value=-1)
    rows = magnitudes.view(-1, run)
    present = rows >= 0
    present |= rows.isnan()
    total, sizes = sums(rows, present)
    low = total / sizes
    high, larger = low.clone(), torch.full_like(sizes, -1)
    for number in range(MOST_ROUNDS):
        threshold = (low + (high - low) / 2).float().double()
        upper, counts = sums(rows, present & ~(rows <= threshold[:, None]))
        moved = (counts != larger) & (counts > 0) & (counts < sizes)
        # Seldom asked for, as the host then waits for a GPU; a settled run does not change.
        if number % ASKED == ASKED - 1 and not bool(moved.any()):
            break
        high = torch.where(moved, upper / counts, high)
        low = torch.where(moved, (total - upper) / (sizes - counts), low)
        larger = torch.where(moved, counts, larger)
    return torch.stack([low, high], 1).float()


def sums(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum and the number of the chosen entries of each row."""
    return torch.where(chosen, rows, 0.0).sum(1), chosen.sum(1)
