"""The atoms of several matrices as far as a device finds them alone, without a look of the host.

Whether the numbers are good enough is a number on the device too. Where they are not, or hold NaN,
the results have no meaning, and nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
from jaxtyping import Bool, Float, Float64

from atomo.codecs.spectral.leading import first
from atomo.codecs.spectral.low_rank import spanned
from atomo.codecs.spectral.spectrum import (
    LARGE,
    LEAST,
    MOST,
    TRUST,
    Spectrum,
    gram_in_blocks,
    gram_in_double,
    in_range,
    sketch,
    without_rounding,
)

__all__ = ["Spectra", "alike", "in_double", "in_single", "of_leading", "of_low_rank", "of_sketch"]

STACKED: Final = 2**26  # entries that are copied together to make one batch of equal matrices


@dataclass(frozen=True)
class Spectra:
    """The coefficients (k for each of b matrices), their vectors, and a flag that these are
    accurate.
    """

    coefficients: Float64[torch.Tensor, "b k"]
    sound: Bool[torch.Tensor, " b"]
    vectors: Callable[[int, torch.Tensor], torch.Tensor]
    """From the number of a matrix and indices below k to unit vectors, as rows in float32."""


def in_single(matrices: Sequence[Float[torch.Tensor, "_ _"]]) -> Spectra:
    """Decomposes matrices of equal width, by Gram matrices of products in float32."""
    gram = grams(matrices)
    total = gram.diagonal(dim1=1, dim2=2).sum(1)
    sound = (total >= LEAST) & (total <= MOST)
    squares, bases = eigenvectors(gram, sound)
    return from_grams(squares, bases, sound & (squares[:, 0] > TRUST * squares[:, -1]))


def in_double(matrices: Sequence[Float[torch.Tensor, "_ _"]]) -> Spectra:
    """Decomposes matrices of equal width, by Gram matrices in float64."""
    gram = torch.stack([gram_in_double(matrix) for matrix in matrices])
    sound = gram.diagonal(dim1=1, dim2=2).sum(1) <= LARGE**2
    return from_grams(*eigenvectors(gram, sound), sound)


def eigenvectors(
    gram: Float64[torch.Tensor, "b n n"], sound: Bool[torch.Tensor, " b"]
) -> tuple[Float64[torch.Tensor, "b n"], Float64[torch.Tensor, "b n n"]]:
    """Eigenvalues in rising order, and vectors as columns."""
    # NaN in one would make the whole batch fail.
    squares, bases = torch.linalg.eigh(gram.masked_fill(~sound[:, None, None], 0.0))
    return squares, bases


def from_grams(
    squares: Float64[torch.Tensor, "b n"],
    bases: Float64[torch.Tensor, "b n n"],
    sound: Bool[torch.Tensor, " b"],
) -> Spectra:
    coefficients = without_rounding(squares.clamp(min=0).sqrt())
    return Spectra(coefficients, sound, lambda row, chosen: bases[row].T[chosen].float())


def of_low_rank(
    matrix: Float[torch.Tensor, "_ _"], rank: int, generator: torch.Generator
) -> Spectra:
    """Decomposes a matrix of presumably low rank."""
    coefficients, basis, spans = spanned(matrix, rank, generator)
    sound = spans & (coefficients[-1] <= LARGE)
    cleaned = without_rounding(coefficients)
    return Spectra(cleaned[None], sound[None], lambda _, chosen: basis.T[chosen].float())


def of_sketch(
    matrix: Float[torch.Tensor, "_ _"], atoms: int, generator: torch.Generator
) -> Spectra:
    """Decomposes a matrix with many columns by a random sketch."""
    return of_one(matrix, sketch(matrix, atoms, generator))


def of_leading(
    matrix: Float[torch.Tensor, "_ _"], atoms: int, generator: torch.Generator
) -> Spectra:
    """Computes the first atoms of a matrix only."""
    return of_one(matrix, first(matrix, atoms, generator))


def of_one(matrix: Float[torch.Tensor, "_ _"], spectrum: Spectrum) -> Spectra:
    sound = in_range(matrix)[None]
    return Spectra(spectrum.coefficients[None], sound, lambda _, chosen: spectrum.vectors(chosen))


def grams(matrices: Sequence[Float[torch.Tensor, "_ _"]]) -> Float64[torch.Tensor, "b n n"]:
    """Computes the Gram matrix of each matrix, from products in float32."""
    if matrices[0].device.type == "cpu":  # stacking here would be a useless copy
        return torch.stack([gram_in_blocks(matrix) for matrix in matrices])
    by_place: dict[int, torch.Tensor] = {}
    for places in alike([*map(len, matrices)]):
        per_batch = max(1, STACKED // matrices[places[0]].numel())
        for batch in (
            places[start : start + per_batch] for start in range(0, len(places), per_batch)
        ):
            gram = gram_in_blocks(torch.stack([matrices[place] for place in batch]))
            by_place |= zip(batch, gram, strict=True)
    return torch.stack([by_place[place] for place in range(len(matrices))])


def alike(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Groups the indices of equal sizes."""
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    for _, same in groupby(order, lambda place: sizes[place]):
        yield [*same]
