"""In which numbers the passes are computed. Weights, gradients and steps are always float32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["forward_in"]


@contextmanager
def forward_in(precision: str, device: torch.device) -> Iterator[None]:
    """PyTorch's autocast around a block: what is safe in half precision is computed in it.

    Args:
        precision: fp32, with which nothing changes, or bf16.
        device: where the block computes.
    """
    if precision == "fp32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield
