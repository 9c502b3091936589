"""Count-sketches as PyTorch operations. Contracts: `kernels/sketch`."""

import torch
from torch import Tensor

from atomo.kernels.random_words.reference import mix, shifted

__all__ = ["add_cells", "fill_cells"]


def fill_cells(values: Tensor, seed: int, cells: Tensor) -> None:
    places, signs = hashed(values, seed, len(cells))
    # Adds: entries share cells, which is the sketch.
    cells.index_add_(0, places, values * signs)


def add_cells(cells: Tensor, seed: int, out: Tensor, scale: float) -> None:
    places, signs = hashed(out, seed, len(cells))
    out.add_(cells[places] * signs, alpha=scale)


def hashed(entries: Tensor, seed: int, cells: int) -> tuple[Tensor, Tensor]:
    """Hashes each entry to a cell and a sign."""
    words = mix(torch.arange(len(entries), device=entries.device) + seed)
    return shifted(shifted(words, 32) * cells, 32), (2 * (words & 1) - 1).float()
