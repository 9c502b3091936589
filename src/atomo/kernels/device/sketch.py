"""Count-sketches as PyTorch operations, with the hash of the CPU. Contracts: `kernels/sketch`."""

import torch
from torch import Tensor

__all__ = ["add_cells", "fill_cells"]

# As int64, which wraps like the unsigned numbers of splitmix64.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def shifted(words: Tensor, bits: int) -> Tensor:
    """The words moved right with zeros behind them."""
    moved: Tensor = (words >> bits) & (2 ** (64 - bits) - 1)
    return moved


def hashed(entries: Tensor, seed: int, cells: int) -> tuple[Tensor, Tensor]:
    """The cell of each entry, and its sign."""
    x = torch.arange(len(entries), device=entries.device) + seed + GOLDEN
    x = (x ^ shifted(x, 30)) * FIRST
    x = (x ^ shifted(x, 27)) * SECOND
    x = x ^ shifted(x, 31)
    return shifted(shifted(x, 32) * cells, 32), (2 * (x & 1) - 1).float()


def fill_cells(values: Tensor, seed: int, cells: Tensor) -> None:
    """Adds each value, with its sign, to its cell."""
    places, signs = hashed(values, seed, len(cells))
    cells.index_add_(0, places, values * signs)


def add_cells(cells: Tensor, seed: int, out: Tensor, scale: float) -> None:
    """Adds what each cell says of its entries."""
    places, signs = hashed(out, seed, len(cells))
    out.add_(cells[places] * signs, alpha=scale)
