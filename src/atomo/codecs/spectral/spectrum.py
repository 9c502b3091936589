"""Orthogonal atoms of a matrix, as close to its singular vectors as is cheap.

For any orthonormal basis v_1 .. v_n of R^n, the atoms (G v_i) v_i^T of an m x n matrix G are
orthogonal to each other and sum to G. For every such basis, sampling these atoms with
c_i = ||G v_i|| is unbiased, and the variance is exactly the closed form of `atoms.variance`. The
singular vectors only minimise that variance, so that they may be approximate; the basis alone must
be orthonormal to full accuracy. Hence no singular value decomposition is needed:

* A matrix of low rank, as linear layers have: see `decompose_low_rank`.
* n <= EXACT: the eigenvectors of the n x n Gram matrix, one pass over G. Its small eigenvalues
  drown in the rounding of float32; where they matter the pass is repeated in float64; its own
  rounding lies below that of G.
* n > EXACT: a randomised range finder with power iterations for the top of the spectrum (Halko,
  Martinsson and Tropp, SIAM Review 2011). Householder reflectors complete it to a basis of all R^n
  that is never stored, and one pass measures every c_i. Still unbiased with the exact variance;
  near the optimum as far as the SKETCH largest singular values hold most of the nuclear norm. At
  4096 x 4096 and 3 atoms the variance is 1.0 times the least for a matrix of rank 64, 1.4 times
  for Gaussian noise and 1.8 times for sigma_i close to 1 / i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int

from atomo.codecs.spectral.chunks import chunks
from atomo.codecs.spectral.low_rank import decompose_low_rank
from atomo.core.devices import to_device
from atomo.errors import CodecError

__all__ = ["Spectrum", "decompose", "indicator", "tall", "times"]

EXACT = 640  # columns; one core takes 60 ms for the eigenvectors of such a Gram matrix
SKETCH = 128  # least number of columns in the range finder; covers the rank of usual batches
OVERSAMPLING = 8  # columns more than atoms wanted
POWER_ITERATIONS = 1  # more => closer to the singular vectors, two more passes each

# Eigenvalues of a Gram matrix made in float32 are good to 1e-7 of the largest. With all of them
# above TRUST of it, singular values are good to 1 %. Of many columns, some always lie below.
TRUST = 1e-5
THIN = 96  # columns
LEAST, MOST = 1e-16, 1e30  # sum of squares for which no square that counts leaves float32
LARGE = 1e20  # with coefficients below it no atom of a gradient leaves float32
FLOOR = 2.0**-23  # of the largest, as float32 rounds: below it a singular value is rounding

BLOCK = 4096  # rows summed in float32
LANES = 16  # columns of which products are much faster than of 17
FEW_ROWS = 4  # of a product that cost no more than two


@dataclass(frozen=True)
class Spectrum:
    """The atoms of a matrix: coefficient i is ||matrix v_i||."""

    coefficients: Float[torch.Tensor, " r"]
    """float64; 0 for an atom that is only rounding."""
    vectors: Callable[[Int[torch.Tensor, " k"]], Float[torch.Tensor, "k n"]]
    """From indices to those v_i, as rows in float32."""


def decompose(
    matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator
) -> Spectrum:
    """Splits a tall matrix, m >= n, into orthogonal atoms: n, or fewer where its rank is low.

    Args:
        matrix: float32.
        atoms: the number of largest atoms to compute accurately; costs only where n > EXACT.
        generator: used only where n > THIN.

    Raises:
        CodecError: the matrix holds NaN or infinity.
    """
    if matrix.shape[1] > THIN and (low_rank := decompose_low_rank(matrix, generator)):
        coefficients, basis = low_rank
        return Spectrum(without_rounding(coefficients), lambda chosen: basis.T[chosen].float())
    return exact(matrix) if matrix.shape[1] <= EXACT else sketched(matrix, atoms, generator)


def exact(matrix: Float[torch.Tensor, "m n"]) -> Spectrum:
    """Computes the singular vectors of `matrix` from its Gram matrix."""
    if matrix.shape[1] <= THIN:
        gram = gram_in_blocks(matrix)
        if LEAST <= float(gram.trace()) <= MOST:
            squares, basis = torch.linalg.eigh(gram)
            if float(squares[0]) > TRUST * float(squares[-1]):
                return from_gram(squares, basis)
    # In float64 no square leaves the range: an entry that is not finite now never was.
    gram = gram_in_double(matrix)
    check_finite(float(gram.trace()))
    return from_gram(*torch.linalg.eigh(gram))


def from_gram(squares: Float[torch.Tensor, " n"], basis: Float[torch.Tensor, "n n"]) -> Spectrum:
    """Builds the spectrum from the eigenvalues and the eigenvectors (columns) of a Gram matrix."""
    coefficients = squares.clamp(min=0).sqrt()
    return Spectrum(without_rounding(coefficients), lambda chosen: basis.T[chosen].float())


def sketched(
    matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator
) -> Spectrum:
    """Approximates the top singular vectors of `matrix`, and completes them to some basis."""
    low, high = (float(end) for end in matrix.aminmax())
    check_finite(high - low)
    if not LEAST <= max(-low, high) ** 2 <= MOST:
        matrix = matrix.double()
    return sketch(matrix, atoms, generator)


def sketch(matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator) -> Spectrum:
    """Computes the result of `sketched` for a matrix with squares in the range of its dtype; never
    waits for the device.
    """
    reflectors, scales = torch.geqrf(top_vectors(matrix, atoms, generator))
    # ||G v_i||^2 for every i, those of the completion included.
    squares = matrix.new_zeros(matrix.shape[1], dtype=torch.float64)
    for rows in chunks(matrix):
        turned = torch.ormqr(reflectors, scales, rows, left=False)
        squares += turned.square_().sum(0, dtype=torch.float64)

    def vectors(chosen: torch.Tensor) -> torch.Tensor:
        units = matrix.new_zeros(len(chosen), matrix.shape[1]).scatter_(1, chosen[:, None], 1.0)
        return torch.ormqr(reflectors, scales, units, left=False, transpose=True).float()

    return Spectrum(without_rounding(squares.sqrt()), vectors)


def top_vectors(
    matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator
) -> Float[torch.Tensor, "n size"]:
    """Returns orthonormal columns close to the right singular vectors of the largest singular
    values.
    """
    size = min(max(SKETCH, atoms + OVERSAMPLING), matrix.shape[1])
    probe = torch.randn(matrix.shape[1], size, generator=generator, device=generator.device)
    probe = to_device(probe, matrix.device).to(matrix.dtype)
    for _ in range(1 + POWER_ITERATIONS):
        probe = matrix.T @ orthonormal(matrix @ orthonormal(probe))
    # The decomposition raises on NaN; another check reports NaN to the caller.
    vectors: torch.Tensor = torch.linalg.svd(probe.nan_to_num(0.0), full_matrices=False).U
    return vectors


def in_range(matrix: Float[torch.Tensor, "m n"]) -> Bool[torch.Tensor, ""]:
    """Returns True, on the device of the matrix, if no square that matters leaves float32."""
    low, high = matrix.aminmax()
    square = torch.maximum(-low, high).double().square()
    return (square >= LEAST) & (square <= MOST)  # not where it is NaN


def orthonormal(columns: Float[torch.Tensor, "m k"]) -> Float[torch.Tensor, "m k"]:
    """Returns an orthonormal basis of the span of the columns; without it all columns turn to the
    largest vector.
    """
    basis: torch.Tensor = torch.linalg.qr(columns).Q
    return basis


def gram_in_blocks(matrix: Float[torch.Tensor, "*b m n"]) -> Float64[torch.Tensor, "*b n n"]:
    """Computes matrix^T matrix as float64 sums of products in float32, for one matrix or each of a
    batch.
    """
    if matrix.shape[-2] <= BLOCK:
        return (matrix.mT @ matrix).double()
    # Columns after the last full LANES are multiplied separately, and only with each other.
    whole = matrix.shape[-1] // LANES * LANES
    first, last = matrix[..., :whole], matrix[..., whole:]
    side, corner = product_in_blocks(matrix, first), product_in_blocks(last, last)
    return torch.cat([side, torch.cat([side[..., whole:, :].mT, corner], -2)], dim=-1)


def product_in_blocks(
    a: Float[torch.Tensor, "*b m k"], b: Float[torch.Tensor, "*b m n"]
) -> Float64[torch.Tensor, "*b k n"]:
    """Computes a^T b in blocks of rows: a float32 sum over a million rows has an error of 1e-5."""
    count = a.shape[-2] // BLOCK
    whole = count * BLOCK
    left, right = (
        part[..., :whole, :].view(*part.shape[:-2], count, BLOCK, part.shape[-1]) for part in (a, b)
    )
    total: torch.Tensor = (left.mT @ right).sum(-3, dtype=torch.float64)
    return total.add_(a[..., whole:, :].mT @ b[..., whole:, :])


def gram_in_double(matrix: Float[torch.Tensor, "m n"]) -> Float[torch.Tensor, "n n"]:
    """Computes matrix^T matrix in float64, without a float64 copy of the whole matrix."""
    total = matrix.new_zeros(matrix.shape[1], matrix.shape[1], dtype=torch.float64)
    for rows in chunks(matrix):
        wide = rows.double()
        total.addmm_(wide.T, wide)
    return total


def without_rounding(coefficients: Float[torch.Tensor, "*b n"]) -> Float[torch.Tensor, "*b n"]:
    """Sets every coefficient to zero that rounding of the float32 matrix can explain."""
    largest = coefficients.amax(-1, keepdim=True)
    return coefficients.masked_fill(coefficients <= FLOOR * largest, 0.0)


def check_finite(value: float) -> None:
    if not math.isfinite(value):
        raise CodecError(
            "svd: the gradient holds NaN or infinity, and only finite values have atoms"
        )


def tall(matrix: Float[torch.Tensor, "m n"]) -> Float[torch.Tensor, "..."]:
    """Returns the matrix, or its transpose if it has fewer rows than columns."""
    return matrix if len(matrix) >= matrix.shape[1] else matrix.T


def indicator(candidate: tuple[tuple[int, int], Spectrum]) -> float:
    """Returns a figure that the error at a given number of bytes is proportional to."""
    # s atoms with the probabilities of least variance have a variance of about (sum sigma)^2 / s.
    # An atom of an m x n matrix takes m + n numbers, so that a budget of B numbers buys
    # s = B / (m + n) atoms: the variance is (sum sigma)^2 (m + n) / B, and this is its root, less
    # the factor that all readings of one parameter share.
    (m, n), spectrum = candidate
    return float(spectrum.coefficients.sum()) * math.sqrt(m + n)


def times(
    rows: Float[torch.Tensor, "k n"], matrix: Float[torch.Tensor, "m n"]
) -> Float[torch.Tensor, "k m"]:
    """Computes rows @ matrix^T, with rows of zeros appended where that is faster."""
    few = len(rows)
    if 1 < few < FEW_ROWS:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, FEW_ROWS - few))
    return (rows @ matrix.T)[:few]
