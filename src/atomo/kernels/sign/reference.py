"""One bit an entry as PyTorch operations. Contracts: `kernels/sign`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomo.kernels.sign import TILE, WIDTH

__all__ = [
    "add_all_row_signs",
    "add_all_signs",
    "add_pack_means",
    "add_pack_sum",
    "add_row_signs",
    "add_signs",
    "pack_signs",
]


def pack_signs(values: Tensor) -> tuple[Tensor, float]:
    bits = torch.signbit(values).to(torch.int64)
    whole = len(values) // TILE * TILE
    width = (len(values) - whole + 31) // 32
    last = torch.nn.functional.pad(bits[whole:], (0, 32 * width - (len(values) - whole)))
    places = torch.arange(32, device=values.device)[:, None]
    parts = [bits[:whole].view(-1, 32, WIDTH), last.view(-1, 32, width) if width else bits[:0]]
    words = [(part << places).sum(1).flatten() for part in parts if part.numel()]
    joined = torch.cat(words)
    return torch.where(joined >= 2**31, joined - 2**32, joined).int(), float(values.abs().max())


def unpack_signs(words: Tensor, entries: int) -> Tensor:
    """Returns True for each entry with the sign bit."""
    whole = entries // TILE * WIDTH
    places = torch.arange(32, device=words.device)[:, None]
    parts = [words[:whole].view(-1, 1, WIDTH), words[whole:].view(1, 1, -1)]
    bits = [(part >> places & 1).flatten() for part in parts if part.numel()]
    return torch.cat(bits)[:entries].bool()


def add_pack_sum(values: Tensor, added: Tensor | None = None) -> tuple[Tensor, float, float, int]:
    if added is not None:
        values.add_(added)
    words, _ = pack_signs(values)
    total, size = float(values.double().sum()), float(values.double().abs().sum())
    positive = int((~torch.signbit(values)).sum())
    return words, (total + size) / 2, (total - size) / 2, positive


def add_signs(words: Tensor, positive: float, negative: float, out: Tensor) -> None:
    signs = unpack_signs(words, len(out))
    out.add_(torch.where(signs, out.new_tensor(negative), out.new_tensor(positive)))


def add_pack_means(values: Tensor, added: Tensor | None, row: int) -> tuple[Tensor, Tensor]:
    if added is not None:
        values.add_(added)
    rows = torch.arange(len(values), device=values.device) // row
    slots = 2 * rows + torch.signbit(values)
    runs = 2 * -(-len(values) // row)
    sums = values.new_zeros(runs, dtype=torch.float64).index_add_(0, slots, values.double())
    means = sums / torch.bincount(slots, minlength=runs).clamp_min(1)
    return pack_signs(values)[0], means.float()


def add_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    rows = torch.arange(len(out), device=out.device) // row
    slots = 2 * rows + unpack_signs(words, len(out))
    out.add_(means[slots], alpha=scale)


def add_all_signs(words: Tensor, units: Sequence[float], out: Tensor) -> None:
    for frame, unit in zip(words, units, strict=True):
        add_signs(frame, unit, -unit, out)


def add_all_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    for frame, own in zip(words, means, strict=True):
        add_row_signs(frame, own, row, scale, out)
