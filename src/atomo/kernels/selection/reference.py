"""Selection of large entries, as PyTorch operations. Contracts: `kernels.selection`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomo.kernels import selection as select
from atomo.kernels.selection.sampled import largest

__all__ = [
    "above",
    "add_at",
    "add_sets",
    "by_sample",
    "chunk_sums",
    "first_largest",
    "kth_largest",
    "largest",
    "largest_bits",
    "magnitudes",
]

MAGNITUDE = 0x7FFFFFFF


def above(
    values: Tensor, added: Tensor | None, low: int, clear: bool = False
) -> tuple[Tensor, Tensor]:
    if added is not None:
        values.add_(added)
    values = values.float()
    indices = ((values.view(torch.int32) & MAGNITUDE) >= low).nonzero().squeeze(1)
    chosen = values[indices]
    select.check_finite(chosen)
    if clear:
        values[indices] = 0
    return indices, chosen


def kth_largest(values: Tensor, k: int) -> tuple[int, int]:
    bits = values & MAGNITUDE
    low = int(bits.topk(k, sorted=True).values[-1])
    return low, int((bits > low).sum())


def first_largest(indices: Tensor, entries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    bits = entries.view(torch.int32) & MAGNITUDE
    low, higher = kth_largest(bits, k)
    ties = bits == low
    if int(ties.sum()) > k - higher:
        ties[ties.nonzero().squeeze(1)[k - higher :]] = False
    chosen = (ties | (bits > low)).nonzero().squeeze(1)
    return indices[chosen], entries[chosen]


def by_sample(
    values: Tensor, added: Tensor | None, sample: range, rank: int, bounds: select.Bounds
) -> tuple[Tensor, Tensor]:
    def entries_above(low: int) -> tuple[Tensor, Tensor]:
        nonlocal added
        addend, added = added, None
        return select.above(values, addend, low)

    places = torch.arange(sample.start, sample.stop, sample.step, device=values.device)
    low = select.kth_largest(select.magnitudes(values, added, places), rank)[0]
    return select.adapted(entries_above, max(1, low), bounds)


def largest_bits(values: Tensor) -> int:
    return int((values.float().view(torch.int32) & MAGNITUDE).max()) if len(values) else 0


def chunk_sums(values: Tensor, added: Tensor | None, chunk: int) -> Tensor:
    if added is not None:
        values.add_(added)
    padded = torch.nn.functional.pad(values.abs().double(), (0, -len(values) % chunk))
    return padded.view(-1, chunk).sum(1)


def magnitudes(values: Tensor, added: Tensor | None, positions: Tensor) -> Tensor:
    sampled = values[positions].float()
    if added is not None:
        sampled.add_(added[positions])
    return sampled.abs_().view(torch.int32)


def add_at(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    out.index_add_(0, indices, values, alpha=scale)


def add_sets(
    out: Tensor, indices: Tensor, values: Tensor, counts: Sequence[int], scale: float
) -> None:
    # One set after the other: within one no index comes twice, so that the order is no matter.
    sets = torch.split(indices, [*counts]), torch.split(values, [*counts])
    for distinct, part in zip(*sets, strict=True):
        out.index_add_(0, distinct, part, alpha=scale)
