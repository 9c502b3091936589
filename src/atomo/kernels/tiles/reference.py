"""The largest entries of each tile, as PyTorch operations. Contracts: `kernels.tiles`."""

import torch
from torch import Tensor

from atomo.kernels import selection as select
from atomo.kernels.tiles import Tiling

__all__ = ["largest"]

MAGNITUDE = 0x7FFFFFFF


def largest(
    values: Tensor,
    added: Tensor | None,
    tiling: Tiling,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    rows, columns, height, width = tiling
    if added is not None:
        values.add_(added)
    values = values.float()
    bits = (values.view(torch.int32) & MAGNITUDE).view(rows, columns)
    # Zeros at the edges make all tiles one size, and zeros are never selected.
    padded = torch.nn.functional.pad(bits, (0, -columns % width, 0, -rows % height))
    down, across = counts.shape
    tiles = padded.view(down, height, across, width).transpose(1, 2).reshape(down, across, -1)
    # Stable, so that of equal entries the first are selected.
    order = tiles.sort(descending=True, stable=True).indices
    ranks = torch.arange(height * width, device=values.device).expand_as(order)
    chosen = torch.zeros_like(tiles, dtype=torch.bool)
    chosen.scatter_(2, order, ranks < counts[:, :, None])
    chosen &= tiles > 0
    whole = chosen.view(down, across, height, width).transpose(1, 2).reshape(padded.shape)
    indices = whole[:rows, :columns].reshape(-1).nonzero().squeeze(1)
    entries = values[indices]
    select.check_finite(entries)
    return indices, entries
