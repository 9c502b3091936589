"""The atoms of a matrix of low rank, at a fraction of the time for a general matrix.

The gradient of a linear layer is a sum of one outer product for each image of the batch: its rank
is at most the batch, however many columns it has. Then random combinations of the rows, a few more
than the rank, span all of them, and all further steps use that small space (Halko, Martinsson
and Tropp, "Finding structure with randomness", SIAM Review 2011, sections 4.1 and 4.3).

The computation checks this assumption. A sample of rows and columns determines the rank. The last
combinations are witnesses. The orthogonal basis is built column by column, so the diagonal of its
triangular factor has how much of a witness the columns before it did not span. A witness is a
Gaussian combination of all rows: the remainder of the matrix shows in it at about its Frobenius
norm, and all eight overlook ten times the allowed remainder with a probability of 10^-8.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int64

from atomo.codecs.spectral.chunks import chunks
from atomo.core.devices import to_device

__all__ = ["decompose_low_rank", "is_low", "sampled_rank", "spanned"]

MOST_RANK = 128
SPARE = 16  # combinations beyond the rank: fewer => a rougher basis
WITNESSES = 8  # combinations: each overlooks one large remainder in ten
SIZE = MOST_RANK + WITNESSES  # rows and columns of the sample
ROUNDING = 8 * 2.0**-23  # of a gradient computed in float32
SPANNED = 4 * ROUNDING  # below it products in float32 are rounding errors


def decompose_low_rank(
    matrix: Float[torch.Tensor, "m n"], generator: torch.Generator
) -> tuple[Float[torch.Tensor, " k"], Float[torch.Tensor, "n k"]] | None:
    """Computes singular values in rising order, float64, and right singular vectors; None for a
    high rank.

    The part of the matrix outside the span of the vectors is below SPANNED of its Frobenius norm.

    Args:
        matrix: float32, at least as many rows as columns.
        generator: used only where the rank may be low.
    """
    rank = int(sampled_rank(matrix))
    if not is_low(rank, matrix.shape[1]):
        return None
    coefficients, basis, spans = spanned(matrix, rank, generator)
    return (coefficients, basis) if bool(spans) else None


def is_low(rank: int, columns: int) -> bool:
    """Returns True if `spanned` pays for a matrix of this rank."""
    return rank <= MOST_RANK and rank + SPARE < columns


def spanned(
    matrix: Float[torch.Tensor, "m n"], rank: int, generator: torch.Generator
) -> tuple[Float64[torch.Tensor, " k"], Float64[torch.Tensor, "n k"], Bool[torch.Tensor, ""]]:
    """Computes the result of `decompose_low_rank`, and a flag that the vectors span the matrix.

    Never waits for the device.
    """
    # In float32, where products take a third of the time. Where the numbers are too large or too
    # small for float32, the witnesses do not agree.
    combined = combinations(matrix, rank + SPARE, generator)
    basis, corner = torch.linalg.qr(combined)
    missed = corner.diagonal()[-WITNESSES:].abs().max()
    norm = combined.double().square().sum(0).mean().sqrt()  # of the matrix, nearly
    spans = missed <= SPANNED * norm  # nor where it is NaN
    wide = basis.double()
    gram = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64, device=basis.device)
    for rows in chunks(matrix):
        # In float64: a Gram matrix squares the singular values, and with them the rounding.
        within = (rows @ basis).double()
        gram.addmm_(within.T, within)
    # The first-order correction of columns that are orthonormal only up to float32 rounding.
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    straight = 1.5 * identity - 0.5 * (wide.T @ wide)
    squares, turns = torch.linalg.eigh((straight @ gram @ straight).masked_fill(~spans, 0.0))
    return squares.clamp(min=0).sqrt(), wide @ (straight @ turns), spans


def sampled_rank(matrix: Float[torch.Tensor, "m n"]) -> Int64[torch.Tensor, ""]:
    """Returns the rank of a sample of rows and columns, which is rarely below the rank of the
    matrix.
    """
    m, n = matrix.shape
    sample = matrix[:: max(1, m // SIZE), :: max(1, n // SIZE)][:SIZE, :SIZE].double()
    sizes = torch.linalg.qr(sample, mode="r").R.diagonal().abs()
    rank: torch.Tensor = (sizes > ROUNDING * sizes.max()).sum()
    return rank


def combinations(
    matrix: Float[torch.Tensor, "m n"], count: int, generator: torch.Generator
) -> Float[torch.Tensor, "n count"]:
    """Returns random combinations of the rows, as columns."""
    total = matrix.new_zeros(matrix.shape[1], count)
    for rows in chunks(matrix):
        weights = torch.randn(len(rows), count, generator=generator, device=generator.device)
        total.addmm_(rows.T, to_device(weights, rows.device))
    return total
