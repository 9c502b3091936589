"""The master's optimiser: PyTorch's own update rules, on all weights as one flat tensor.

It steps every weight alike, so one tensor gives the same numbers as one a parameter, in a few large
operations. Checkpoints hold its state by parameter name all the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.fusion import Bucket, named_slices
from atomo.memory import kind_of
from atomo.training.contents import check_tensor
from atomo.training.decay import DecayMomentum
from atomo.training.learning_rate import LearningRate
from atomo.training.update_rules import COUNT, Adam, Sgd, UpdateRule

__all__ = ["FlatOptimizer"]

KINDS: Final = {"sgd": {"momentum_buffer"}, "adam": {COUNT, "exp_avg", "exp_avg_sq"}}
DECAY: Final = "decay_momentum"  # in a state


@final
class FlatOptimizer:
    """Updates `weights` in place from `gradient`, both flat and in the order of the buckets."""

    def __init__(
        self,
        weights: Float[Tensor, " n"],
        buckets: Sequence[Bucket],
        settings: Settings,
        rate: LearningRate,
    ) -> None:
        self.weights = weights
        self.gradient = torch.zeros_like(weights)
        self._buckets = buckets
        self._settings, self._rate = settings, rate
        self._rule = build(settings)
        self._decay = decay_momentum(weights, settings)

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`, which counts from 1."""
        return self._rate.at(step)

    def step(self, step: int, factor: float = 1.0) -> None:
        """Takes step number `step`, `factor` times as long, with what lies in `gradient`."""
        if self._decay is not None:
            self._decay.add_to(self.gradient)
        self._rule.step(self.weights, self.gradient, factor * self.learning_rate(step))

    def state_dict(self) -> dict[str, Tensor]:
        """Its state: `KIND/PARAMETER` for what each weight has one of, `KIND` for the rest."""
        state: dict[str, Tensor] = {}
        for kind, value in self._rule.state.items():
            if value.shape == self.weights.shape:
                state |= {f"{kind}/{name}": t for name, t in named_slices(value, self._buckets)}
            else:
                state[kind] = value
        if self._decay is not None:
            buffer = named_slices(self._decay.buffer, self._buckets)
            state |= {f"{DECAY}/{name}": part for name, part in buffer}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces its state by what `state_dict` returned."""
        inner = self._rule.state
        kinds = {name.split("/", 1)[0] for name in state}
        self._check(kinds - {DECAY})
        for kind in kinds:
            if kind == COUNT and kind in state:  # Adam's count of steps is of all weights at once
                check_tensor(kind, state[kind], torch.zeros(()))
                inner[kind] = state[kind].clone()
                continue
            whole = self._whole(kind, state)
            if kind != DECAY:
                inner[kind] = whole
            elif self._decay is not None:
                self._decay.buffer.copy_(whole)

    def _whole(self, kind: str, state: Mapping[str, Tensor]) -> Float[Tensor, " n"]:
        """What a state has of every parameter, joined."""
        whole = torch.empty_like(self.weights)
        for name, view in named_slices(whole, self._buckets):
            key = f"{kind}/{name}"
            if key not in state:
                raise CheckpointError(f"the checkpoint has no {kind} for parameter {name}")
            check_tensor(key, state[key], view)
            view.copy_(state[key])
        return whole

    def _check(self, kinds: set[str]) -> None:
        """Raises CheckpointError where a state has other kinds than this optimiser."""
        known = KINDS[self._settings.optimizer]
        if kinds and kinds != known:
            raise CheckpointError(
                f"the checkpoint has {', '.join(sorted(kinds))} of the optimizer; "
                f"{self._settings.optimizer} has {', '.join(sorted(known))}"
            )


def build(settings: Settings) -> UpdateRule:
    """The update rule of that name."""
    s = settings
    if s.optimizer == "adam":
        return Adam(weight_decay=s.weight_decay)
    apart = kind_of(s.memory).has_momentum  # the workers have applied it, and once is enough
    return Sgd(
        momentum=0.0 if apart else s.momentum,
        nesterov=s.nesterov and not apart,
        weight_decay=0.0 if has_decay_momentum(s) else s.weight_decay,
    )


def decay_momentum(weights: Float[Tensor, " n"], settings: Settings) -> DecayMomentum | None:
    """The momentum of the weight decay, where that is apart from the gradient's."""
    s = settings
    if not (s.weight_decay and has_decay_momentum(s)):
        return None
    return DecayMomentum(weights, s.weight_decay, s.momentum, s.nesterov)


def has_decay_momentum(settings: Settings) -> bool:
    """Whether workers apply momentum, to gradients that have no weight decay in them yet."""
    return settings.optimizer == "sgd" and kind_of(settings.memory).decay_has_momentum
