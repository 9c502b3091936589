"""The atoms of many matrices, found and drawn with one wait for the device for all of them.

A matrix on its own makes the host look at numbers that are on the device: whether a way can be
trusted, and which atoms were drawn. Here all matrices are taken as far as the draw, narrow ones of
equal width in one batch; then the host looks once, at everything. It looks before that at the ranks
of wide matrices, all at once, and those whose way was no good take the next way together.

Law: what is drawn is what each matrix draws on its own. On the CPU, where LAPACK takes one matrix
after the other, that is so in every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64

from atomo.codecs.spectral.leading import is_wide
from atomo.codecs.spectral.low_rank import is_low, sampled_rank
from atomo.codecs.spectral.selection import Selection
from atomo.codecs.spectral.spectra import (
    Spectra,
    alike,
    in_double,
    in_single,
    of_leading,
    of_low_rank,
    of_sketch,
)
from atomo.codecs.spectral.spectrum import EXACT, THIN
from atomo.devices import to_device

__all__ = ["Drawn", "draw_together", "uniform_of"]

NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class Drawn:
    """The atoms to send of a matrix."""

    basis: Float[torch.Tensor, "k n"]
    """Unit vectors, as rows in float32."""
    chances: Float[torch.Tensor, " k"]
    """The divisor of each atom."""
    large: bool = False
    """True if an atom may overflow float32."""


@dataclass(frozen=True)
class Entry:
    """A matrix among others, and its generator as it was before anything was drawn."""

    place: int
    matrix: Float[torch.Tensor, "m n"]
    generator: torch.Generator
    state: torch.Tensor

    @property
    def columns(self) -> int:
        return self.matrix.shape[1]


@dataclass(frozen=True)
class Batch:
    """Some matrices, as far as the device takes them alone."""

    entries: Sequence[Entry]
    states: Sequence[torch.Tensor]
    """The states of their generators, just before the draw."""
    spectra: Spectra
    chances: Float[torch.Tensor, "b n"]
    told: Bool[torch.Tensor, "b told"]
    """Flags of the drawn atoms, and a last flag that the earlier numbers were accurate."""


def draw_together(
    matrices: Sequence[Float[torch.Tensor, "_ _"]],
    generators: Sequence[torch.Generator],
    selection: Selection,
) -> list[Drawn | None]:
    """Draws the atoms of each matrix. None for a matrix that needs individual treatment, for
    example with NaN or very large numbers; its generator is then unchanged.

    Args:
        matrices: float32, no fewer rows than columns.
        generators: one for each, none twice.
        selection: which atoms are sent.
    """
    pairs = enumerate(zip(matrices, generators, strict=True))
    entries = [Entry(place, one, own, own.get_state()) for place, (one, own) in pairs]
    begun = [drawing(*some, selection) for some in first_ways(entries, selection)]
    found = chosen(begun)
    again = [one for one in entries if one.place not in found and one.columns <= EXACT]
    again = [one for one in again if not is_led(one, selection)]
    found |= chosen([drawing(*some, selection) for some in exactly(again, in_double)])
    for entry in entries:
        if entry.place not in found:
            entry.generator.set_state(entry.state)
    return [found.get(entry.place) for entry in entries]


Way = tuple[Sequence[Entry], Spectra]


def first_ways(entries: Sequence[Entry], selection: Selection) -> Iterator[Way]:
    """Applies to each matrix the first method that the matrix would use on its own."""
    atoms = selection.rank
    yield from exactly([one for one in entries if one.columns <= THIN], in_single)
    wide = [one for one in entries if one.columns > THIN]
    for one in wide:
        if is_led(one, selection):
            yield [one], of_leading(one.matrix, atoms, one.generator)
    wide = [one for one in wide if not is_led(one, selection)]
    ranks = ranks_of(wide)
    full = [one for one in wide if not is_low(ranks[one.place], one.columns)]
    for one in wide:
        if is_low(rank := ranks[one.place], one.columns):
            yield [one], of_low_rank(one.matrix, rank, one.generator)
    yield from exactly([one for one in full if one.columns <= EXACT], in_double)
    for one in full:
        if one.columns > EXACT:
            yield [one], of_sketch(one.matrix, atoms, one.generator)


def is_led(one: Entry, selection: Selection) -> bool:
    """Returns True if only the first atoms of a matrix are needed."""
    return selection.largest and is_wide(one.matrix, selection.rank)


def ranks_of(entries: Sequence[Entry]) -> Mapping[int, int]:
    """Returns the rank of a sample of each matrix, by place, with one wait for the device."""
    if not entries:
        return {}
    ranks = torch.stack([sampled_rank(one.matrix) for one in entries]).tolist()
    return dict(zip([one.place for one in entries], ranks, strict=True))


def exactly(
    entries: Sequence[Entry], way: Callable[[list[torch.Tensor]], Spectra]
) -> Iterator[Way]:
    """Decomposes matrices of equal width in one batch."""
    for places in alike([one.columns for one in entries]):
        some = [entries[place] for place in places]
        yield some, way([one.matrix for one in some])


def drawing(entries: Sequence[Entry], spectra: Spectra, selection: Selection) -> Batch:
    """Draws from the spectra of some matrices."""
    count = spectra.coefficients.shape[1]
    states = [one.generator.get_state() for one in entries]
    uniform = torch.stack([uniform_of(count, one.generator) for one in entries])
    there = to_device(uniform, spectra.coefficients.device)
    drawn, chances = selection.choose(spectra.coefficients, there)
    told = torch.cat([drawn, spectra.sound[:, None]], 1)
    return Batch(entries, states, spectra, chances, told)


def uniform_of(count: int, generator: torch.Generator) -> Float64[torch.Tensor, " n"]:
    """Draws uniform numbers on the device of the generator."""
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


def chosen(batches: Sequence[Batch]) -> dict[int, Drawn]:
    """Returns the drawn atoms by place, where they are accurate; else resets the generator to its
    state before the draw.
    """
    if not batches:
        return {}
    told = torch.cat([batch.told.flatten() for batch in batches]).cpu().numpy()  # the one wait
    rows = [(batch, row) for batch in batches for row in range(len(batch.entries))]
    ends = np.cumsum([batch.told.shape[1] for batch, _ in rows])
    parts = [*zip(rows, np.split(told, ends[:-1]), strict=True)]
    for (batch, row), own in parts:
        if not own[-1]:
            batch.entries[row].generator.set_state(batch.states[row])
    kept = [(batch, row, np.flatnonzero(own[:-1])) for (batch, row), own in parts if own[-1]]
    picks = [pick for _, _, pick in kept]
    sent = to_device(torch.from_numpy(np.concatenate([NONE, *picks])), batches[0].told.device)
    found = {}
    for (batch, row, _), some in zip(kept, torch.split(sent, [*map(len, picks)]), strict=True):
        basis, chances = batch.spectra.vectors(row, some), batch.chances[row][some]
        found[batch.entries[row].place] = Drawn(basis, chances)
    return found
