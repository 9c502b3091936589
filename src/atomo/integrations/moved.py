"""Momentum and weight decay that a memory applies in an optimiser's place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor
from torch.optim import SGD, Optimizer

from atomo.errors import ConfigError
from atomo.integrations.making import Choice
from atomo.memory import kind_of

__all__ = ["Moved", "move_momentum"]


@final
@dataclass(frozen=True)
class Moved:
    """What an optimiser no longer does."""

    decay: Mapping[Tensor, float] = field(default_factory=dict)
    """The weight decay of each parameter that has any."""

    def add_decay(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], scale: float
    ) -> None:
        """Adds the decay to gradients that were multiplied with `scale`, in place.

        Before they are averaged: all ranks have the same weights, and momentum applies to gradient
        and decay together, as in plain SGD.
        """
        for name, parameter in parameters.items():
            if parameter in self.decay:
                decay = self.decay[parameter] * scale
                gradients[name].add_(parameter.detach(), alpha=decay)


def move_momentum(choice: Choice, optimizer: Optimizer) -> tuple[Choice, Moved]:
    """The choice with the optimiser's momentum, where the memory is one that applies it.

    Raises:
        ConfigError: the groups have different momentum, dampening, or maximise.
    """
    groups = optimizer.param_groups
    if not isinstance(optimizer, SGD) or not any(group["momentum"] for group in groups):
        return choice, Moved()
    kinds = {(g["momentum"], g["nesterov"], g["dampening"], g["maximize"]) for g in groups}
    momentum, nesterov, dampening, maximize = sorted(kinds)[-1]
    given = replace(choice, momentum=momentum, nesterov=nesterov)
    kind = kind_of(given.memory_spec)
    if not kind.has_momentum:
        return choice, Moved()
    if len(kinds) > 1 or dampening or maximize:
        raise ConfigError(
            f"memory {kind.id} applies momentum, one for all parameters and without dampening or "
            "maximize: give memory='residual', or groups that agree"
        )
    for group in groups:
        group["momentum"], group["nesterov"] = 0.0, False
    if not kind.decay_has_momentum:
        return given, Moved()
    decay = {p: g["weight_decay"] for g in groups for p in g["params"] if g["weight_decay"]}
    for group in groups:
        group["weight_decay"] = 0.0
    return given, Moved(decay)
