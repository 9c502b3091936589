"""The two factors of a sum of atoms, as they are or coded by another codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Codec
from atomo.codecs.checks import as_codec_error
from atomo.codecs.spectral.spectrum import times
from atomo.core.devices import to_device

__all__ = [
    "AtomFactors",
    "CodedFactors",
    "best_scale",
    "code_factors",
    "join_factors",
    "plain_factors",
]


@dataclass(frozen=True)
class AtomFactors:
    """The matrix left^T right: one atom for each row, its weight in `left` or in `right`."""

    left: Float[torch.Tensor, "k m"]
    right: Float[torch.Tensor, "k n"]


@dataclass(frozen=True)
class CodedFactors:
    """`scale` times left^T right, each coded as one vector of its rows."""

    sizes: Int32[torch.Tensor, " sizes"]
    """The number of atoms, at least 1, and m."""
    scale: Float[torch.Tensor, " scale"]
    left: Any
    right: Any


def code_factors(atoms: AtomFactors, codec: Codec[Any], generator: torch.Generator) -> CodedFactors:
    """Codes both factors, one after the other, with independent draws."""
    left, right = at_least_one(atoms.left), at_least_one(atoms.right)
    sizes = torch.tensor(left.shape, dtype=torch.int32)
    coded = [codec.encode(factor.flatten(), generator) for factor in (left, right)]
    return CodedFactors(sizes, left.new_ones(1), *coded)


def at_least_one(factor: Float[torch.Tensor, "k m"]) -> Float[torch.Tensor, "_ m"]:
    """Returns the factor, or a row of zeros for an empty factor: no codec takes an empty vector."""
    return factor if len(factor) else factor.new_zeros(1, factor.shape[1])


def plain_factors(
    payload: CodedFactors, codec: Codec[Any], m: int, n: int, device: torch.device
) -> AtomFactors:
    """Decodes both factors of an m x n matrix.

    Raises:
        CodecError: the payload is not one of such a matrix.
    """
    atoms = int(payload.sizes[0])
    left = torch.zeros(atoms, m, device=device)
    right = torch.zeros(atoms, n, device=device)
    with as_codec_error("svd", "factors:"):
        codec.add_decoded(payload.left, left.view(-1))
        codec.add_decoded(payload.right, right.view(-1))
    return AtomFactors(left, right)


def join_factors(
    several: Sequence[tuple[AtomFactors, float]],
) -> tuple[Float[torch.Tensor, "k m"], Float[torch.Tensor, "k n"]]:
    """Concatenates the factors of a weighted sum: each of `several` times its number."""
    lefts, rights = [atoms.left for atoms, _ in several], [atoms.right for atoms, _ in several]
    scales = [scale for _, scale in several]
    # Into the shorter side, where it costs less, and before anything is added up: a sum of many
    # large gradients might leave float32 where their mean does not.
    if lefts[0].shape[1] < rights[0].shape[1]:
        return scaled(lefts, scales), torch.cat(rights)
    return torch.cat(lefts), scaled(rights, scales)


def scaled(
    factors: Sequence[Float[torch.Tensor, "_ m"]], scales: Sequence[float]
) -> Float[torch.Tensor, "k m"]:
    """Concatenates factors, each times its number."""
    joined = torch.cat([*factors])
    if len(set(scales)) == 1:
        return joined.mul_(scales[0])
    rows = torch.tensor(scales).repeat_interleave(torch.tensor([len(factor) for factor in factors]))
    return joined.mul_(to_device(rows, joined.device)[:, None])


def best_scale(atoms: AtomFactors, matrix: Float[torch.Tensor, "m n"]) -> float:
    """Returns the factor that brings the atoms nearest to `matrix`; the result is never farther
    than zero is.
    """
    left, right = atoms.left.double(), atoms.right.double()
    # ||L^T R||^2 = sum_ij (L L^T)_ij (R R^T)_ij, and <L^T R, G> = <L, R G^T>: no m x n product.
    square = float(((left @ left.T) * (right @ right.T)).sum())
    if not square:
        return 1.0
    peak = right.abs().max()  # divided out, so that no product leaves float32
    common = float((times((right / peak).float(), matrix).double() * left).sum() * peak)
    return common / square
