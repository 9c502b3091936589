"""The optimizer: PyTorch's own update rules, on all weights as one flat tensor.

The rules treat every weight alike, so that one tensor gives the same numbers as a tensor for each
parameter, in a few large operations. Checkpoints have the state by parameter name.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.fusion import Bucket, named_slices
from atomo.memory import kind_of
from atomo.training.checkpoints.schema import check_tensor
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.one_thread import on_one_thread
from atomo.training.optim.update_rules import COUNT, Adam, Muon, Sgd, UpdateRule
from atomo.training.optim.weight_average import AVERAGE, WeightAverage
from atomo.training.optim.weight_decay import (
    DecayMomentum,
    DecoupledDecay,
    PlainDecay,
    decayed_spans,
)

__all__ = ["FlatOptimizer"]

MOMENTS: Final = {COUNT, "exp_avg", "exp_avg_sq"}
KINDS: Final = {
    "sgd": {"momentum_buffer"},
    "adam": MOMENTS,
    "adamw": MOMENTS,
    "muon": MOMENTS | {"momentum_buffer"},
}
DECOUPLED: Final = ("adamw", "muon")
EPSILON: Final = 1e-6  # of `clip_grad_norm_`
DECAY: Final = "decay_momentum"  # in a state


@final
class FlatOptimizer:
    """Optimizer that updates `weights` in place from `gradient`, both flat, in bucket order."""

    def __init__(
        self,
        weights: Float[Tensor, " n"],
        buckets: Sequence[Bucket],
        settings: Settings,
        rate: LearningRate,
        averages: bool = True,
        matrices: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Creates an optimizer before its first step.

        Args:
            weights: the weights to update.
            buckets: the position of each parameter.
            settings: of the run.
            rate: the learning rate of each step.
            matrices: the parameters that Muon orthogonalises, with their numbers of rows.
            averages: True to compute the average of `--ema-decay`, on ranks that write checkpoints.
        """
        self.weights = weights
        self.gradient = torch.zeros_like(weights)
        self._buckets = buckets
        self._settings, self._rate = settings, rate
        self._rule = build(settings, buckets, matrices)
        self._decoupled = decoupled_decay(weights, settings, buckets)
        self._decay = decay_momentum(weights, settings, buckets)
        self._apart = decay_of_some(weights, settings, buckets)
        decay = settings.ema_decay if averages else 0.0
        self.average = WeightAverage(decay) if decay else None
        """The average of the weights; None: it is not computed, or with the anchor."""

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of `step`, which counts from 1."""
        return self._rate.at(step)

    def step(self, step: int, factor: float = 1.0) -> None:
        """Takes step number `step` with the gradient in `gradient`.

        Args:
            step: counts from 1.
            factor: on the learning rate.
        """
        if self._settings.clip_grad:
            clip(self.gradient, self._settings.clip_grad)
        if self._apart is not None:
            self._apart.add_to(self.gradient)
        if self._decay is not None:
            self._decay.add_to(self.gradient)
        rate = factor * self.learning_rate(step)
        if self._decoupled is not None:
            self._decoupled.step(rate)
        self._rule.step(self.weights, self.gradient, rate)
        if self.average is not None:
            self.average.update(self.weights)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state: `KIND/PARAMETER` for states of each weight, `KIND` for a number."""
        state: dict[str, Tensor] = {}
        for kind, value in self._rule.state.items():
            if value.shape == self.weights.shape:
                state |= {f"{kind}/{name}": t for name, t in named_slices(value, self._buckets)}
            else:
                state[kind] = value
        if self._decay is not None:
            buffer = named_slices(self._decay.buffer, self._buckets)
            state |= {f"{DECAY}/{name}": part for name, part in buffer}
        return state | (self.average.state_dict(self._buckets) if self.average else {})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`."""
        kinds = {name.split("/", 1)[0] for name in state}
        self._check(kinds - {DECAY, AVERAGE})
        for kind in kinds:
            if kind == COUNT and kind in state:  # Adam's count of steps is a single number
                check_tensor(kind, state[kind], torch.zeros(()))
                self._rule.state[kind] = state[kind].clone()
                continue
            whole = self._whole(kind, state)
            self._load(kind, whole)

    def _load(self, kind: str, whole: Float[Tensor, " n"]) -> None:
        """Restores one kind of state; a kind that these settings do not use is dropped."""
        if kind == DECAY:
            if self._decay is not None:
                self._decay.buffer.copy_(whole)
        elif kind == AVERAGE:
            if self.average is not None:
                self.average.value = whole
        else:
            self._rule.state[kind] = whole

    def _whole(self, kind: str, state: Mapping[str, Tensor]) -> Float[Tensor, " n"]:
        """Joins a state's tensors of every parameter."""
        whole = torch.empty_like(self.weights)
        for name, view in named_slices(whole, self._buckets):
            key = f"{kind}/{name}"
            if key not in state:
                raise CheckpointError(f"the checkpoint has no {kind} for parameter {name}")
            check_tensor(key, state[key], view)
            view.copy_(state[key])
        return whole

    def _check(self, kinds: set[str]) -> None:
        """Raises CheckpointError if a state has other kinds than this optimizer."""
        s = self._settings
        expected = set() if kind_of(s.memory).makes_update else KINDS[s.optimizer]
        if kinds and kinds != expected:
            raise CheckpointError(
                f"the checkpoint has {', '.join(sorted(kinds))} of the optimizer; "
                f"{self._settings.optimizer} has {', '.join(sorted(expected))}"
            )


def build(settings: Settings, buckets: Sequence[Bucket], matrices: Mapping[str, int]) -> UpdateRule:
    """Returns the update rule of the settings."""
    s = settings
    decay = s.weight_decay if s.decay_norms and not has_decay_momentum(s) else 0.0
    if kind_of(s.memory).makes_update:  # u + wd p: AdamW's decay
        return Sgd(momentum=0.0, nesterov=False, weight_decay=decay)
    if s.optimizer == "adam":
        return Adam(weight_decay=decay)
    if s.optimizer == "adamw":
        return Adam(weight_decay=0.0)
    if s.optimizer == "muon":
        return Muon(*divide(buckets, matrices))
    apart = kind_of(s.memory).has_momentum  # the workers have already applied momentum
    return Sgd(
        momentum=0.0 if apart else s.momentum,
        nesterov=s.uses_nesterov and not apart,
        weight_decay=decay,
    )


def divide(
    buckets: Sequence[Bucket], matrices: Mapping[str, int]
) -> tuple[list[tuple[slice, int]], list[slice]]:
    """Returns the positions of matrices, with their numbers of rows, and those of the rest."""
    places = {
        slot.name: slice(bucket.offset + slot.start, bucket.offset + slot.stop)
        for bucket in buckets
        for slot in bucket.slots
    }
    own = [(place, matrices[name]) for name, place in places.items() if name in matrices]
    return own, [place for name, place in places.items() if name not in matrices]


def decoupled_decay(
    weights: Float[Tensor, " n"], settings: Settings, buckets: Sequence[Bucket]
) -> DecoupledDecay | None:
    """Returns the weight decay if it is beside the steps; else None."""
    s = settings
    if not s.weight_decay or s.optimizer not in DECOUPLED or kind_of(s.memory).makes_update:
        return None
    return DecoupledDecay(weights, s.weight_decay, decayed_spans(buckets, s.decay_norms))


def clip(gradient: Float[Tensor, " n"], max_norm: float) -> None:
    """Shortens a gradient to a norm of `most`, as `clip_grad_norm_` does, on all ranks alike."""
    with on_one_thread():
        norm = float(gradient.norm())
    if norm > max_norm - EPSILON:
        gradient.mul_(max_norm / (norm + EPSILON))


def decay_of_some(
    weights: Float[Tensor, " n"], settings: Settings, buckets: Sequence[Bucket]
) -> PlainDecay | None:
    """Returns the weight decay if only some parameters have it; else None."""
    s = settings
    beside = s.optimizer in DECOUPLED and not kind_of(s.memory).makes_update
    if s.decay_norms or not s.weight_decay or has_decay_momentum(s) or beside:
        return None
    return PlainDecay(weights, s.weight_decay, decayed_spans(buckets, s.decay_norms))


def decay_momentum(
    weights: Float[Tensor, " n"], settings: Settings, buckets: Sequence[Bucket]
) -> DecayMomentum | None:
    """Returns the momentum of the weight decay if it is separate from the gradient's; else None."""
    s = settings
    if not (s.weight_decay and has_decay_momentum(s)):
        return None
    spans = decayed_spans(buckets, s.decay_norms)
    return DecayMomentum(weights, s.weight_decay, s.momentum, s.uses_nesterov, spans)


def has_decay_momentum(settings: Settings) -> bool:
    """Returns True if workers apply momentum to gradients without weight decay."""
    return settings.optimizer == "sgd" and kind_of(settings.memory).decay_has_momentum
