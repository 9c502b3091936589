"""Huffman codes for messages on other devices, through the host. Contracts: `kernels/entropy`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomo.core.devices import to_device
from atomo.kernels.entropy import cpu

__all__ = ["compress", "decompress_all"]


def compress(symbols: Tensor, coded: bool = True, trits: bool = False) -> Tensor:
    # A code begins where the last one ends, which PyTorch has no operation for.
    return cpu.compress(symbols.cpu(), coded, trits)


def decompress_all(words: Sequence[Tensor], count: int, device: torch.device) -> list[Tensor]:
    return [to_device(cpu.decompress(message, count), device) for message in words]
