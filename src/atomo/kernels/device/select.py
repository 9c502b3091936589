"""Which entries are large, as PyTorch operations. Contracts: `kernels/select`."""

import torch
from torch import Tensor

__all__ = ["above", "chunk_sums", "draw", "kth_largest", "largest_bits"]

MAGNITUDE = 0x7FFFFFFF


def above(values: Tensor, added: Tensor | None, low: int, clear: bool) -> tuple[Tensor, Tensor]:
    """Indices and values of the entries with bits >= `low`."""
    if added is not None:
        values.add_(added)
    indices = ((values.view(torch.int32) & MAGNITUDE) >= low).nonzero().squeeze(1)
    found = values[indices]
    if clear:
        values[indices] = 0
    return indices, found


def kth_largest(values: Tensor, k: int) -> tuple[int, int]:
    """The bits of the k-th largest magnitude, and how many are above."""
    bits = values & MAGNITUDE
    low = int(bits.topk(k, sorted=True).values[-1])
    return low, int((bits > low).sum())


def largest_bits(values: Tensor) -> int:
    """The bits of the largest magnitude."""
    return int((values.view(torch.int32) & MAGNITUDE).max()) if len(values) else 0


def chunk_sums(values: Tensor, added: Tensor | None, chunk: int) -> Tensor:
    """The L1 norm of each chunk, after adding `added`."""
    if added is not None:
        values.add_(added)
    padded = torch.nn.functional.pad(values.abs().double(), (0, -len(values) % chunk))
    return padded.view(-1, chunk).sum(1)


def draw(words: Tensor, bits: int, entries: int, k: int) -> Tensor:
    """The images of 0..k-1 under a permutation of the entries."""
    mask, half, rounds = (1 << bits) - 1, max(1, bits // 2), len(words) // 2
    found = torch.arange(k, device=words.device)
    outside = torch.ones_like(found, dtype=torch.bool)
    while outside.any():
        x = found[outside]
        for r in range(rounds):
            x = ((x ^ (words[r] & mask)) * words[rounds + r]) & mask
            x ^= x >> half
        found[outside] = x ^ (words[2 * rounds] & mask)
        outside = found >= entries
    return found
