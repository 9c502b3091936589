"""Momentum and selection as PyTorch operations. Contracts: `kernels/momentum`."""

import torch
from torch import Tensor

from atomo.kernels.selection.reference import above

__all__ = ["grow_above", "magnitudes"]


def grow_above(
    values: Tensor, velocity: Tensor, gradient: Tensor, factor: float, nesterov: bool, low: int
) -> tuple[Tensor, Tensor]:
    if nesterov:
        velocity.add_(gradient).mul_(factor)
        return above(values, torch.add(velocity, gradient), low)
    velocity.mul_(factor).add_(gradient)
    return above(values, velocity, low)


def magnitudes(
    values: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    factor: float,
    nesterov: bool,
    positions: Tensor,
) -> Tensor:
    speed, pushed = velocity[positions], gradient[positions].float()
    grown = (speed + pushed) * factor + pushed if nesterov else speed * factor + pushed
    return (values[positions] + grown).abs_().view(torch.int32)
