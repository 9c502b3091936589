"""Decomposition and sampling of many matrices, with one wait for the device.

For a single matrix the host waits for numbers on the device: the flag that a decomposition is
accurate, and the drawn atoms. Here the device decomposes and draws for all matrices, with narrow
matrices of equal width in one batch, before the host reads all flags in one copy. The ranks of wide
matrices are read before that, also in one copy. Matrices with an inaccurate decomposition are
decomposed again, as another batch.

Law: each matrix draws the atoms that it would draw alone. On the CPU, where LAPACK decomposes one
matrix after another, every bit is equal.
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
from atomo.core.devices import to_device

__all__ = ["DrawnAtoms", "draw_together", "uniform_of"]

NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class DrawnAtoms:
    """The atoms to send of a matrix."""

    basis: Float[torch.Tensor, "k n"]
    """Unit vectors, as rows in float32."""
    divisors: Float[torch.Tensor, " k"]
    """The divisor of each atom: its probability, or 1."""
    large: bool = False
    """True if an atom may overflow float32."""


@dataclass(frozen=True)
class MatrixEntry:
    """A matrix among others, its generator, and the state of the generator before any draw."""

    place: int
    matrix: Float[torch.Tensor, "m n"]
    generator: torch.Generator
    state: torch.Tensor

    @property
    def columns(self) -> int:
        return self.matrix.shape[1]


@dataclass(frozen=True)
class DrawnBatch:
    """Matrices with atoms drawn on the device, which the host has not read yet."""

    entries: Sequence[MatrixEntry]
    states: Sequence[torch.Tensor]
    """The states of their generators, just before the draw."""
    spectra: Spectra
    divisors: Float[torch.Tensor, "b n"]
    flags: Bool[torch.Tensor, "b flags"]
    """A flag for each atom, set if it was drawn, and a last flag, set if the decomposition is
    accurate."""


def draw_together(
    matrices: Sequence[Float[torch.Tensor, "_ _"]],
    generators: Sequence[torch.Generator],
    selection: Selection,
) -> list[DrawnAtoms | None]:
    """Draws the atoms of each matrix. None for a matrix that must be decomposed alone, for example
    with NaN or very large numbers; its generator is then unchanged.

    Args:
        matrices: float32, no fewer rows than columns.
        generators: one for each, none twice.
        selection: the rule that selects the atoms to send.
    """
    pairs = enumerate(zip(matrices, generators, strict=True))
    entries = [
        MatrixEntry(place, matrix, generator, generator.get_state())
        for place, (matrix, generator) in pairs
    ]
    first = [draw_batch(*batch, selection) for batch in decompose_first(entries, selection)]
    drawn = read_drawn(first)
    again = [entry for entry in entries if entry.place not in drawn and entry.columns <= EXACT]
    again = [entry for entry in again if not is_led(entry, selection)]
    batches = decompose_exactly(again, in_double)
    drawn |= read_drawn([draw_batch(*batch, selection) for batch in batches])
    for entry in entries:
        if entry.place not in drawn:
            entry.generator.set_state(entry.state)
    return [drawn.get(entry.place) for entry in entries]


Decomposed = tuple[Sequence[MatrixEntry], Spectra]


def decompose_first(entries: Sequence[MatrixEntry], selection: Selection) -> Iterator[Decomposed]:
    """Applies to each matrix the first method that the matrix would use on its own."""
    atoms = selection.rank
    yield from decompose_exactly([entry for entry in entries if entry.columns <= THIN], in_single)
    wide = [entry for entry in entries if entry.columns > THIN]
    for entry in wide:
        if is_led(entry, selection):
            yield [entry], of_leading(entry.matrix, atoms, entry.generator)
    wide = [entry for entry in wide if not is_led(entry, selection)]
    ranks = ranks_of(wide)
    full = [entry for entry in wide if not is_low(ranks[entry.place], entry.columns)]
    for entry in wide:
        if is_low(rank := ranks[entry.place], entry.columns):
            yield [entry], of_low_rank(entry.matrix, rank, entry.generator)
    yield from decompose_exactly([entry for entry in full if entry.columns <= EXACT], in_double)
    for entry in full:
        if entry.columns > EXACT:
            yield [entry], of_sketch(entry.matrix, atoms, entry.generator)


def is_led(entry: MatrixEntry, selection: Selection) -> bool:
    """Returns True if only the first atoms of a matrix are needed."""
    return selection.largest and is_wide(entry.matrix, selection.rank)


def ranks_of(entries: Sequence[MatrixEntry]) -> Mapping[int, int]:
    """Returns the rank of a sample of each matrix, by place, with one wait for the device."""
    if not entries:
        return {}
    ranks = torch.stack([sampled_rank(entry.matrix) for entry in entries]).tolist()
    return dict(zip([entry.place for entry in entries], ranks, strict=True))


def decompose_exactly(
    entries: Sequence[MatrixEntry], method: Callable[[list[torch.Tensor]], Spectra]
) -> Iterator[Decomposed]:
    """Decomposes matrices of equal width in one batch."""
    for places in alike([entry.columns for entry in entries]):
        batch = [entries[place] for place in places]
        yield batch, method([entry.matrix for entry in batch])


def draw_batch(
    entries: Sequence[MatrixEntry], spectra: Spectra, selection: Selection
) -> DrawnBatch:
    """Draws from the spectra of some matrices."""
    count = spectra.coefficients.shape[1]
    states = [entry.generator.get_state() for entry in entries]
    uniform = torch.stack([uniform_of(count, entry.generator) for entry in entries])
    there = to_device(uniform, spectra.coefficients.device)
    drawn, divisors = selection.choose(spectra.coefficients, there)
    flags = torch.cat([drawn, spectra.sound[:, None]], 1)
    return DrawnBatch(entries, states, spectra, divisors, flags)


def uniform_of(count: int, generator: torch.Generator) -> Float64[torch.Tensor, " n"]:
    """Draws uniform numbers on the device of the generator."""
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


def read_drawn(batches: Sequence[DrawnBatch]) -> dict[int, DrawnAtoms]:
    """Returns the drawn atoms of the accurate decompositions by place.

    The generator of another matrix is set back to its state before the draw.
    """
    if not batches:
        return {}
    # The only wait for the device.
    flags = torch.cat([batch.flags.flatten() for batch in batches]).cpu().numpy()
    rows = [(batch, row) for batch in batches for row in range(len(batch.entries))]
    ends = np.cumsum([batch.flags.shape[1] for batch, _ in rows])
    parts = [*zip(rows, np.split(flags, ends[:-1]), strict=True)]
    for (batch, row), own in parts:
        if not own[-1]:
            batch.entries[row].generator.set_state(batch.states[row])
    accurate = [(batch, row, np.flatnonzero(own[:-1])) for (batch, row), own in parts if own[-1]]
    picks = [pick for _, _, pick in accurate]
    sent = to_device(torch.from_numpy(np.concatenate([NONE, *picks])), batches[0].flags.device)
    drawn = {}
    for (batch, row, _), atoms in zip(accurate, torch.split(sent, [*map(len, picks)]), strict=True):
        basis, divisors = batch.spectra.vectors(row, atoms), batch.divisors[row][atoms]
        drawn[batch.entries[row].place] = DrawnAtoms(basis, divisors)
    return drawn
