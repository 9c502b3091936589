"""The published `dgc` of GRACE, on the CPU: its memory and its compressor, not changed.

Its all-gather moves sizes by `.cuda()` and so needs a GPU. `average` makes the same calls on the
CPU: a gather of sizes, a gather of values and a gather of indices, each padded to the longest.
"""

import sys
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["GraceDGC"]

RATIO: Final = 0.001
MOMENTUM: Final = 0.9


@final
class GraceDGC:
    """One rank of GRACE's `dgc`, with momentum and without clipping."""

    def __init__(self, folder: Path) -> None:
        """Imports the published code.

        Args:
            folder: the root of GRACE's repository.
        """
        sys.path.insert(0, str(folder))
        from grace_dl.dist.compressor.dgc import (  # type: ignore[import-not-found]
            DgcCompressor,
        )
        from grace_dl.dist.memory.dgc import DgcMemory  # type: ignore[import-not-found]

        self._compressor: Any = DgcCompressor(RATIO)
        self._memory: Any = DgcMemory(MOMENTUM, gradient_clipping=False, world_size=1)

    def compress(self, gradient: Tensor, name: str) -> tuple[tuple[Tensor, Tensor], Any]:
        """Compresses a gradient with momentum and memory. Returns values and indices."""
        # Its memory keeps the first gradient that it gets, and changes it later.
        tensor = self._memory.compensate(gradient.clone(), name)
        compressed, context = self._compressor.compress(tensor, name)
        self._memory.update(tensor, name, self._compressor, compressed, context)
        return compressed, context

    def average(self, gradient: Tensor, name: str) -> Tensor:
        """Returns the mean of the gradients of all ranks."""
        (values, indices), context = self.compress(gradient, name)
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, torch.tensor([values.numel()]))
        counts = [int(size) for size in sizes]
        pairs = zip(gathered(values, counts), gathered(indices, counts), strict=True)
        total: Tensor = sum(self._compressor.decompress(pair, context) for pair in pairs)
        return total / len(counts)


def gathered(tensor: Tensor, counts: list[int]) -> list[Tensor]:
    """Gathers tensors of these lengths from all ranks."""
    padded = torch.cat([tensor, tensor.new_empty(max(counts) - tensor.numel())])
    rows = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(rows, padded)
    return [row[:count] for row, count in zip(rows, counts, strict=True)]
