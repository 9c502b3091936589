"""Two levels by Lloyd's algorithm, as PyTorch operations. Contracts: `kernels.lloyd`."""

import torch
from torch import Tensor

from atomo.kernels import sign
from atomo.kernels.lloyd import MOST_ROUNDS

__all__ = ["add_levels", "pack_levels", "two_levels"]

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


def pack_levels(values: Tensor, run: int, levels: Tensor) -> tuple[Tensor, Tensor]:
    thresholds = levels[:, 0] + (levels[:, 1] - levels[:, 0]) / 2
    # The sign bit of threshold - magnitude is 1 where the upper level is nearer.
    below = spread(thresholds, run, len(values)) - values.abs()
    return sign.pack_signs(values)[0], sign.pack_signs(below)[0]


def add_levels(signs: Tensor, outer: Tensor, levels: Tensor, run: int, out: Tensor) -> None:
    upper, factors = torch.zeros_like(out), torch.zeros_like(out)
    sign.add_signs(outer, 0.0, 1.0, upper)
    sign.add_signs(signs, 1.0, -1.0, factors)
    low, high = (spread(levels[:, side], run, len(out)) for side in range(2))
    out.add_(torch.where(upper > 0, high, low).mul_(factors))


def spread(numbers: Tensor, run: int, entries: int) -> Tensor:
    """Returns the number of each entry's run."""
    return numbers[:, None].expand(-1, run).reshape(-1)[:entries]


def sums(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum and the number of the chosen entries of each row."""
    return torch.where(chosen, rows, 0.0).sum(1), chosen.sum(1)
