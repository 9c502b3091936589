"""Momentum and selection as PyTorch operations. Contracts: `kernels/momentum`."""

import torch
from torch import Tensor

from atomo.kernels import momentum
from atomo.kernels import selection as select
from atomo.kernels.selection.reference import above

__all__ = ["grow_above", "grow_by_sample", "magnitudes"]


def grow_above(
    values: Tensor, velocity: Tensor, gradient: Tensor, factor: float, nesterov: bool, low: int
) -> tuple[Tensor, Tensor]:
    if nesterov:
        velocity.add_(gradient).mul_(factor)
        return above(values, torch.add(velocity, gradient), low)
    velocity.mul_(factor).add_(gradient)
    return above(values, velocity, low)


def grow_by_sample(
    values: Tensor,
    velocity: Tensor,
    gradient: Tensor,
    factor: float,
    nesterov: bool,
    sample: range,
    rank: int,
    bounds: select.Bounds,
) -> tuple[Tensor, Tensor]:
    state, grown = (values, velocity, gradient, factor, nesterov), False

    def entries_above(low: int) -> tuple[Tensor, Tensor]:
        nonlocal grown
        if grown:
            return select.above(values, None, low)
        grown = True
        return momentum.grow_above(*state, low)

    places = torch.arange(sample.start, sample.stop, sample.step, device=values.device)
    low = select.kth_largest(momentum.magnitudes(*state, places), rank)[0]
    return select.adapted(entries_above, max(1, low), bounds)


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
