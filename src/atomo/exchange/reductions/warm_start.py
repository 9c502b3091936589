"""Factors of the step before, from which the next step starts: the same on all ranks."""

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.core.randomness import derive
from atomo.errors import CheckpointError

__all__ = ["WarmStart"]


@final
class WarmStart:
    """A factor of each matrix, by parameter name; random before the first step.

    Only the directions of the columns matter. So factors are stored with a largest magnitude of 1:
    products with them do not overflow or underflow, for gradients of any magnitude.
    """

    def __init__(self, seed: int) -> None:
        """Takes the seed of the run, the same on all ranks; there are no factors yet."""
        self._seed = seed
        self._factors: dict[str, Tensor] = {}

    def factor(
        self, name: str, rows: int, rank: int, device: torch.device
    ) -> Float[Tensor, "rows rank"]:
        """Returns the factor of a matrix. Columns that a change of the rank adds are drawn.

        Raises:
            CheckpointError: the loaded factor is of another matrix.
        """
        stored = self._factors.get(name)
        if stored is not None and stored.shape == (rows, rank) and stored.device == device:
            return stored
        generator = Generator().manual_seed(derive(self._seed, "factor", name))
        factor = torch.randn(rows, rank, generator=generator).to(device)
        if stored is not None:
            if stored.shape[0] != rows:
                raise CheckpointError(
                    f"the factor of {name} has {stored.shape[0]} rows in the checkpoint; {rows} "
                    "were expected: it is of another model or --comm-type"
                )
            common = min(rank, stored.shape[1])
            factor[:, :common] = stored[:, :common]
        self._factors[name] = factor
        return factor

    def keep(self, name: str, factor: Float[Tensor, "rows rank"]) -> None:
        """Stores a factor for the next step, unless it is zero."""
        peak = float(factor.abs().max())
        if peak > 0:
            self._factors[name] = factor / peak

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a copy of all factors, by parameter name."""
        return {name: factor.clone() for name, factor in self._factors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces all factors.

        Raises:
            CheckpointError: a factor is no matrix of finite float32.
        """
        for name, factor in state.items():
            if factor.dtype != torch.float32 or factor.dim() != 2 or not factor.isfinite().all():
                raise CheckpointError(
                    f"the factor of {name} must be a matrix of finite float32, got "
                    f"{factor.dtype} {tuple(factor.shape)}"
                )
        self._factors = {name: factor.clone() for name, factor in state.items()}
