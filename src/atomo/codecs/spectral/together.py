"""The atoms of many thin matrices, found and drawn with one wait for the device for all of them.

A matrix on its own makes the host look at numbers that are on the device: whether its Gram matrix
can be trusted, and which atoms were drawn. Here all matrices are taken as far as the draw, those of
equal width in one batch; then the host looks once, at everything. Those whose Gram matrix needs
float64 take the same way again, with another wait.

Law: what is drawn is what each matrix draws on its own. On the CPU, where LAPACK takes one matrix
after the other, that is so in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64

from atomo.codecs.spectral.spectrum import (
    LARGE,
    LEAST,
    MOST,
    TRUST,
    gram_in_blocks,
    gram_in_double,
    without_rounding,
)

__all__ = ["Drawn", "Rule", "draw_together"]

STACKED: Final = 2**26  # entries that are copied at once to make one batch of equal matrices
NONE: Final = np.empty(0, np.int64)

Rule = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From coefficients and uniform numbers, a row a matrix, to which atoms are sent, and to what each
is divided by."""


@dataclass(frozen=True)
class Drawn:
    """The atoms to send of a matrix."""

    basis: Float[torch.Tensor, "k n"]
    """Unit vectors, as rows in float32."""
    chances: Float[torch.Tensor, " k"]
    """What each is divided by."""
    large: bool = False
    """Whether an atom may leave float32."""


@dataclass(frozen=True)
class Entry:
    """A matrix among others, and its generator as it was before anything was drawn."""

    place: int
    matrix: Float[torch.Tensor, "m n"]
    generator: torch.Generator
    state: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """Matrices of equal width, as far as the device takes them alone."""

    entries: Sequence[Entry]
    bases: Float64[torch.Tensor, "b n n"]
    """Eigenvectors as columns."""
    chances: Float64[torch.Tensor, "b n"]
    told: Bool[torch.Tensor, "b told"]
    """Which of the n atoms were drawn, and whether the Gram matrix was good enough for them."""


def draw_together(
    matrices: Sequence[Float[torch.Tensor, "_ _"]],
    generators: Sequence[torch.Generator],
    rule: Rule,
) -> list[Drawn | None]:
    """What is sent of each matrix. None for one that must be looked at on its own, as it holds NaN
    or very large numbers; its generator is as it was.

    Args:
        matrices: float32, tall, and of at most THIN columns.
        generators: one for each, none twice.
        rule: how atoms are drawn.
    """
    found: dict[int, Drawn] = {}
    pairs = enumerate(zip(matrices, generators, strict=True))
    left = [Entry(place, one, own, own.get_state()) for place, (one, own) in pairs]
    for double in (False, True):
        found |= chosen([begun(same, double, rule) for same in alike(left, width)])
        left = [entry for entry in left if entry.place not in found]
        for entry in left:
            entry.generator.set_state(entry.state)
    return [found.get(place) for place in range(len(matrices))]


def width(entry: Entry) -> int:
    return entry.matrix.shape[1]


def length(entry: Entry) -> int:
    return len(entry.matrix)


def alike(entries: Sequence[Entry], size: Callable[[Entry], int]) -> Iterator[list[Entry]]:
    """Those of equal size together."""
    for _, same in groupby(sorted(entries, key=size), size):
        yield [*same]


def begun(entries: Sequence[Entry], double: bool, rule: Rule) -> Batch:
    """Matrices of one width up to the draw, with Gram matrices of products in float32 or not."""
    gram = (
        torch.stack([gram_in_double(one.matrix) for one in entries]) if double else grams(entries)
    )
    total = gram.diagonal(dim1=1, dim2=2).sum(1)
    sound = total <= LARGE**2 if double else (total >= LEAST) & (total <= MOST)
    # NaN in one would make the whole batch fail.
    squares, bases = torch.linalg.eigh(gram.masked_fill(~sound[:, None, None], 0.0))
    if not double:
        sound = sound & (squares[:, 0] > TRUST * squares[:, -1])
    coefficients = without_rounding(squares.clamp(min=0).sqrt())
    uniform = torch.stack([uniform_of(bases.shape[1], one.generator) for one in entries])
    drawn, chances = rule(coefficients, on(bases.device, uniform))
    return Batch(entries, bases, chances, torch.cat([drawn, sound[:, None]], 1))


def grams(entries: Sequence[Entry]) -> Float64[torch.Tensor, "b n n"]:
    """The Gram matrix of each, from products in float32."""
    if entries[0].matrix.device.type == "cpu":  # where to stack would be to copy for nothing
        return torch.stack([gram_in_blocks(one.matrix) for one in entries])
    found: dict[int, torch.Tensor] = {}
    for same in alike(entries, length):
        most = max(1, STACKED // same[0].matrix.numel())
        for some in (same[first : first + most] for first in range(0, len(same), most)):
            gram = gram_in_blocks(torch.stack([one.matrix for one in some]))
            found |= zip((one.place for one in some), gram, strict=True)
    return torch.stack([found[one.place] for one in entries])


def uniform_of(count: int, generator: torch.Generator) -> Float64[torch.Tensor, " n"]:
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


def on(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    """The same on a device, for which the host does not wait."""
    pinned = values.pin_memory() if device.type == "cuda" and not values.is_cuda else values
    return pinned.to(device, non_blocking=True)


def chosen(batches: Sequence[Batch]) -> dict[int, Drawn]:
    """What was drawn, by place, of those whose Gram matrix was good enough."""
    if not batches:
        return {}
    told = torch.cat([batch.told.flatten() for batch in batches]).cpu().numpy()  # the one wait
    rows = [(batch, row) for batch in batches for row in range(len(batch.entries))]
    ends = np.cumsum([batch.told.shape[1] for batch, _ in rows])
    kept = [
        (*row, own) for row, own in zip(rows, np.split(told, ends[:-1]), strict=True) if own[-1]
    ]
    picks = [np.flatnonzero(own[:-1]) for _, _, own in kept]
    sent = on(batches[0].bases.device, torch.from_numpy(np.concatenate([NONE, *picks])))
    found = {}
    for (batch, row, _), some in zip(kept, sent.split([len(pick) for pick in picks]), strict=True):
        basis = batch.bases[row].T[some].float()
        found[batch.entries[row].place] = Drawn(basis, batch.chances[row][some])
    return found
