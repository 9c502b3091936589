"""Spectral ATOMO: a few singular triples, sampled so that their expectation is the gradient.

A parameter is read as a matrix (`matricise`), split into orthogonal atoms (`spectrum`), and each
atom is sent with the probability that makes the variance least for the budget (`atoms`). Only the
atoms that were drawn are ever formed.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Generator, Size, Tensor

from atomo.codecs.atoms import draw, probabilities, relative_probabilities
from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.matricise import MATRICISATIONS, matrix_shapes
from atomo.codecs.spectrum import Spectrum, decompose
from atomo.errors import CodecError, ConfigError

__all__ = ["SVD"]

SELECTIONS = ("sample", "top")
LANES = 4  # rows of a product that cost no more than two
LARGE = 1e20  # a gradient below it has no atom that leaves float32


@dataclass(frozen=True)
class Factors:
    """The matrix left^T right: one atom for each row, its weight in `left` or in `right`."""

    left: Float[Tensor, "k m"]
    right: Float[Tensor, "k n"]


@final
@dataclass(frozen=True)
class SVD(Codec[Factors]):
    """Atoms of the singular value decomposition.

    Raises:
        ConfigError: a setting is out of range, or `selection` and `rank` contradict each other.
    """

    rank: int = 3
    """Expected number of atoms; 0: p_i = sigma_i / sigma_1. Lower => more compression."""
    matricisation: str = "pairs"
    """How to read a convolution: "pairs", "filters", or "auto" for the one whose nuclear norm times
    sqrt(m + n) is the smaller, an estimate of error for a given number of bytes."""
    selection: str = "sample"
    """"sample" draws atoms, unbiased; "top" takes the `rank` largest, which needs a memory."""

    id: ClassVar[str] = "svd"
    payload: ClassVar[type[Factors]] = Factors
    unit: ClassVar[Unit] = Unit.MATRIX

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigError(f"svd: rank must be >= 0, got {self.rank}")
        known = {"matricisation": tuple(MATRICISATIONS), "selection": SELECTIONS}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                raise ConfigError(f"svd: {name} must be one of {', '.join(values)}; got {value!r}")
        if self.selection == "top" and self.rank == 0:
            raise ConfigError("svd: selection=top needs rank >= 1, got 0, which draws by chance")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION if self.selection == "top" else Law.UNBIASED})

    def encode(self, gradient: Float[Tensor, "..."], generator: Generator) -> Factors:
        if not gradient.numel():
            raise CodecError(f"svd: cannot encode an empty gradient, shape {tuple(gradient.shape)}")
        gradient = gradient.contiguous()
        shapes = matrix_shapes(gradient.shape, self.matricisation)
        spectra = [decompose(tall(gradient.view(shape)), self.rank, generator) for shape in shapes]
        (m, n), spectrum = min(zip(shapes, spectra, strict=True), key=indicator)
        weighted, basis = self.select(tall(gradient.view(m, n)), spectrum, generator)
        return Factors(weighted, basis) if m >= n else Factors(basis, weighted)

    def select(
        self, matrix: Float[Tensor, "m n"], spectrum: Spectrum, generator: Generator
    ) -> tuple[Float[Tensor, "k m"], Float[Tensor, "k n"]]:
        """The atoms to send of a tall matrix: weighted on its long side, of norm 1 on the other."""
        chances = self.chances(spectrum.coefficients)
        chosen = draw(chances, generator).nonzero().squeeze(1)
        basis = spectrum.vectors(chosen)
        weighted = times(basis / chances[chosen, None].float(), matrix)
        if float(spectrum.coefficients.max()) > LARGE and not weighted.isfinite().all():
            raise CodecError("svd: atoms of this gradient overflow float32; scale it down first")
        return weighted, basis

    def chances(self, coefficients: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The probability of each atom."""
        if self.selection == "top":
            largest = coefficients.topk(min(self.rank, len(coefficients))).indices
            return torch.zeros_like(coefficients).index_fill_(0, largest, 1) * (coefficients > 0)
        if self.rank == 0:
            return relative_probabilities(coefficients)
        return probabilities(coefficients, float(self.rank))

    def fields(self, shape: Size) -> tuple[Field, ...]:
        shapes = matrix_shapes(shape, self.matricisation)
        most = max(min(m, n) for m, n in shapes)
        return tuple(
            Field(torch.float32, (most, max(sizes))) for sizes in zip(*shapes, strict=True)
        )

    def add_decoded(self, payload: Factors, out: Float[Tensor, "..."], scale: float = 1.0) -> None:
        left, right = payload.left, payload.right
        m, n = self.expected(left, right, out.shape)
        if out.is_contiguous():
            out.view(m, n).addmm_(left.T, right, alpha=scale)
        else:
            out.add_((left.T @ right).view(out.shape), alpha=scale)

    def expected(self, left: Tensor, right: Tensor, shape: Size) -> tuple[int, int]:
        """The (m, n) that both factors agree on, once it is one that `shape` allows."""
        if left.ndim == right.ndim == 2 and len(left) == len(right):
            m, n = left.shape[1], right.shape[1]
            if (m, n) in matrix_shapes(shape, self.matricisation) and len(left) <= min(m, n):
                return m, n
        raise CodecError(
            f"svd: factors {tuple(left.shape)} and {tuple(right.shape)} for shape {tuple(shape)}, "
            f"which is read as {' or '.join(map(str, matrix_shapes(shape, self.matricisation)))}"
        )


def tall(matrix: Float[Tensor, "m n"]) -> Float[Tensor, "..."]:
    """The matrix or its transpose, with no fewer rows than columns."""
    return matrix if len(matrix) >= matrix.shape[1] else matrix.T


def indicator(candidate: tuple[tuple[int, int], Spectrum]) -> float:
    """What the error for a given number of bytes grows with."""
    (m, n), spectrum = candidate
    return float(spectrum.coefficients.sum()) * math.sqrt(m + n)


def times(rows: Float[Tensor, "k n"], matrix: Float[Tensor, "m n"]) -> Float[Tensor, "k m"]:
    """The product rows @ matrix^T, with rows of zeros added where that is faster."""
    few = len(rows)
    if 1 < few < LANES:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, LANES - few))
    return (rows @ matrix.T)[:few]
