"""The largest atoms of a matrix, for a selection that sends no others.

The residual of a memory raises the rank of a gradient, so that `decompose_low_rank` soon fails. The
whole spectrum costs many times as much as its top. The top comes from a few random combinations of
the columns, which power iterations turn towards the singular vectors (Halko, Martinsson and Tropp,
"Finding structure with randomness", SIAM Review 2011).

The atoms (G v_i) v_i^T of any orthonormal v_i are orthogonal, so that sending them reduces the
squared error by exactly the sum of ||G v_i||^2. The part that approximate singular vectors miss
stays in the memory, as all unsent parts do.
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from atomo.codecs.spectral.spectrum import (
    LEAST,
    MOST,
    THIN,
    Spectrum,
    check_finite,
    decompose,
    orthonormal,
)
from atomo.core.devices import to_device

__all__ = ["first", "is_wide", "leading"]

OVERSAMPLING = 8  # columns more than atoms wanted; fewer => a rougher basis
LANES = 16  # columns of which products are fast
POWER_ITERATIONS = 2  # more => closer to the singular vectors, two more passes each


def leading(matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator) -> Spectrum:
    """Approximates the `atoms` largest atoms of a tall matrix, or more atoms where that is cheaper.

    Args:
        matrix: float32, at least as many rows as columns.
        atoms: the number of atoms.
        generator: used only where the matrix has many columns.

    Raises:
        CodecError: the matrix holds NaN or infinity.
    """
    if not is_wide(matrix, atoms):
        return decompose(matrix, atoms, generator)
    low, high = (float(end) for end in matrix.aminmax())
    check_finite(high - low)
    if not LEAST <= max(-low, high) ** 2 <= MOST:
        matrix = matrix.double()
    return first(matrix, atoms, generator)


def is_wide(matrix: Float[torch.Tensor, "m n"], atoms: int) -> bool:
    """Returns True if the first atoms alone cost less than all atoms."""
    return matrix.shape[1] > max(THIN, 4 * width_for(atoms))


def width_for(atoms: int) -> int:
    """Returns the number of columns of the random probe."""
    return -(-(atoms + OVERSAMPLING) // LANES) * LANES


def first(matrix: Float[torch.Tensor, "m n"], atoms: int, generator: torch.Generator) -> Spectrum:
    """Computes the first atoms of a matrix with squares in the range of its dtype; never waits for
    the device.
    """
    basis = directions(matrix, width_for(atoms), generator)[:, :atoms]
    coefficients = torch.linalg.vector_norm(matrix @ basis, dim=0, dtype=torch.float64)
    return Spectrum(coefficients, lambda chosen: basis.T[chosen].float())


def directions(
    matrix: Float[torch.Tensor, "m n"], size: int, generator: torch.Generator
) -> Float[torch.Tensor, "n size"]:
    """Returns orthonormal columns close to the first right singular vectors, the largest first."""
    probe = torch.randn(matrix.shape[1], size, generator=generator, device=generator.device)
    probe = to_device(probe, matrix.device).to(matrix.dtype)
    for _ in range(POWER_ITERATIONS):
        probe = matrix.T @ orthonormal(matrix @ probe)
        probe = orthonormal(probe)
    spanned = matrix.T @ orthonormal(matrix @ probe)
    # The decomposition raises on NaN; another check reports NaN to the caller.
    vectors: torch.Tensor = torch.linalg.svd(spanned.nan_to_num(0.0), full_matrices=False).U
    return vectors
