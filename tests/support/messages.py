"""Messages of bytes, for tests of entropy coders."""

import torch
from torch import Generator, Tensor


def message(kind: str, n: int) -> Tensor:
    """Returns a message of one kind: even, one, steep, or trits."""
    generator = Generator().manual_seed(n)
    if kind == "even":
        return torch.randint(256, (n,), generator=generator).to(torch.uint8)
    if kind == "one":
        return torch.full((n,), 7, dtype=torch.uint8)
    if kind == "steep":  # Huffman's own code would be longer than 12 bits
        return torch.empty(n).geometric_(0.5, generator=generator).clamp(max=255).to(torch.uint8)
    digits = torch.rand(n, 5, generator=generator)
    trits = (digits > 0.02).long() + (digits > 0.98).long()
    return (trits * 3 ** torch.arange(5)).sum(1).to(torch.uint8)
