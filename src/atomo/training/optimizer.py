"""The master's optimiser: PyTorch's own, on all weights as one flat parameter.

It steps every weight alike, so one tensor gives the same numbers as one a parameter, in a few large
operations. Checkpoints hold its state by parameter name all the same.
"""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.fusion import Bucket, named_slices
from atomo.memory import kind_of
from atomo.training.learning_rate import learning_rate

__all__ = ["FlatOptimizer"]


@final
class FlatOptimizer:
    """Updates `weights` in place from `gradient`, both flat and in the order of the buckets."""

    def __init__(
        self, weights: Float[Tensor, " n"], buckets: Sequence[Bucket], settings: Settings
    ) -> None:
        self.gradient = torch.zeros_like(weights)
        self._weights = nn.Parameter(weights)
        self._weights.grad = self.gradient
        self._buckets = buckets
        self._settings = settings
        self._inner = build(self._weights, settings)

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`, which counts from 1."""
        return learning_rate(self._settings, step)

    def step(self, step: int) -> None:
        """Takes step number `step` with what lies in `gradient`."""
        for group in self._inner.param_groups:
            group["lr"] = self.learning_rate(step)
        self._inner.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Its state: `KIND/PARAMETER` for what each weight has one of, `KIND` for the rest."""
        state: dict[str, Tensor] = {}
        for kind, value in self._inner.state[self._weights].items():
            if value is None:
                continue
            if value.shape == self._weights.shape:
                state |= {f"{kind}/{name}": t for name, t in named_slices(value, self._buckets)}
            else:
                state[kind] = value
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces its state by what `state_dict` returned."""
        inner = self._inner.state[self._weights]
        for kind in {name.split("/", 1)[0] for name in state}:
            if kind in state:
                inner[kind] = state[kind].clone()
                continue
            inner[kind] = torch.empty_like(self._weights.detach())
            for name, view in named_slices(inner[kind], self._buckets):
                try:
                    view.copy_(state[f"{kind}/{name}"])
                except (KeyError, RuntimeError) as error:
                    raise CheckpointError(f"no {kind} for parameter {name}: {error}") from error


def build(weights: nn.Parameter, settings: Settings) -> torch.optim.Optimizer:
    """PyTorch's optimiser of that name."""
    s = settings
    apart = kind_of(s.memory).has_momentum
    if s.optimizer == "adam":
        return torch.optim.Adam([weights], lr=s.lr, weight_decay=s.weight_decay)
    return torch.optim.SGD(
        [weights],
        lr=s.lr,
        momentum=0.0 if apart else s.momentum,
        nesterov=s.nesterov and not apart,
        weight_decay=s.weight_decay,
    )
