"""Momentum and weight decay that a memory applies in place of an optimizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import SGD, Optimizer

from atomo.errors import CheckpointError, ConfigError
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.optimizers.weight_decay import NO_DECAY, Decay
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.options.resolve import check_recipe
from atomo.hooks.states.own_memory import check_same
from atomo.memory import Memory, kind_of
from atomo.memory.momentum import Momentum

__all__ = ["MomentumTransfer", "as_optimizers", "inner_optimizer", "move_momentum"]

MOMENTUM: Final = ("momentum", "nesterov")
DECAY: Final = "weight_decay"

Group = dict[str, Any]

transfers: Final[WeakKeyDictionary[Optimizer, list[Group]]] = WeakKeyDictionary()
"""The settings of each parameter group that moved from an optimizer to a memory."""


@final
@dataclass(frozen=True)
class MomentumTransfer:
    """Transfer of settings from optimizers to a memory.

    The states of the optimizers still contain the settings, as those of plain SGD do, so that a
    state can be loaded with a hook or without, before or after the hook is created.
    """

    optimizers: Sequence[Optimizer] = ()
    names: tuple[str, ...] = MOMENTUM

    def __bool__(self) -> bool:
        return bool(self.optimizers)

    def decay(self, parameters: Mapping[str, Tensor], times: int = 1) -> Decay:
        """Returns the weight decay that moved from the optimizers.

        Args:
            parameters: the parameters by the names of their gradients.
            times: the factor on the decay, for gradients to which one rank alone adds it.
        """
        if DECAY not in self.names:
            return NO_DECAY
        return Decay(parameters, lambda parameter: times * self._decay_of(parameter))

    def _decay_of(self, parameter: Tensor) -> float:
        optimizer, number = self._groups[parameter]
        return float(transfers[optimizer][number][DECAY])

    @cached_property
    def _groups(self) -> Mapping[Tensor, tuple[Optimizer, int]]:
        """Maps each parameter to its optimizer, and the index of its group."""
        return {
            parameter: (optimizer, number)
            for optimizer in self.optimizers
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }

    def take(self) -> None:
        """Takes the settings from the optimizers, once there is a memory that applies them."""
        for optimizer in self.optimizers:
            groups = groups_of(optimizer)
            if optimizer not in transfers:
                optimizer.register_state_dict_post_hook(put_back)
                optimizer.register_load_state_dict_post_hook(take_again)
                optimizer.register_step_pre_hook(check_taken)
            transfers[optimizer] = [{name: group[name] for name in self.names} for group in groups]
            clear(optimizer)


def groups_of(optimizer: Optimizer) -> list[Group]:
    """Returns the groups of an optimizer, with the settings that were moved before."""
    own = transfers.get(optimizer, [])
    moved = [*own, *({} for _ in optimizer.param_groups[len(own) :])]
    return [g | settings for g, settings in zip(optimizer.param_groups, moved, strict=True)]


def clear(optimizer: Optimizer) -> None:
    """Sets the moved settings of an optimizer to zero."""
    for group, own in zip(optimizer.param_groups, transfers[optimizer], strict=True):
        group |= {name: type(value)() for name, value in own.items()}
    for state in optimizer.state.values():
        state.pop("momentum_buffer", None)


def put_back(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Adds the moved settings to a state that is being saved."""
    for group, own in zip(state["param_groups"], transfers[optimizer], strict=True):
        group |= own


def take_again(optimizer: Optimizer) -> None:
    """Takes the settings of a loaded state; the weight decay of the state applies from then on.

    Raises:
        CheckpointError: the momentum differs from that of the memory.
    """
    for group, own in zip(optimizer.param_groups, transfers[optimizer], strict=True):
        loaded = {name: group[name] for name in own}
        if not any(loaded.values()):
            continue  # earlier versions left the settings out
        if any(loaded[name] != own[name] for name in MOMENTUM):
            raise CheckpointError(
                f"the optimizer's state has {spelled(loaded)}, and the memory applies "
                f"{spelled(own)}: give the optimizer the same before the hook is made"
            )
        own |= loaded
    clear(optimizer)


def check_taken(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Raises ConfigError if a moved setting was set again before a step."""
    del args, kwargs
    names = [name for name in transfers[optimizer][0] if name != "nesterov"]
    for group in optimizer.param_groups:
        for name in names:
            if group[name]:
                raise ConfigError(
                    f"the memory applies the optimizer's {name}, and a group has {group[name]:g} "
                    "again: add groups before the hook is made, and give schedulers that leave "
                    "it alone, such as OneCycleLR(..., cycle_momentum=False)"
                )


def spelled(group: Mapping[str, Any]) -> str:
    """Returns the momentum of a group in words."""
    return f"momentum {group['momentum']:g}{' of Nesterov' if group['nesterov'] else ''}"


def inner_optimizer(optimizer: object) -> Optimizer:
    """Returns the optimizer of torch.optim inside wrappers, such as that of Accelerate.

    Raises:
        ConfigError: there is none, or it averages gradients itself.
    """
    if isinstance(getattr(optimizer, "exchange", None), Exchange):
        raise ConfigError("the optimizer is one of wrap_optimizer, which averages without a hook")
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):
        return inner_optimizer(inner)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer must be one of torch.optim, such as SGD, not a {type(optimizer).__name__}"
        )
    return optimizer


def as_optimizers(config: HookConfig, optimizer: object) -> list[Optimizer]:
    """Returns the argument `optimizer` of a hook as a list; empty for None.

    Raises:
        ConfigError: the argument is no optimizer, or `momentum` was given too.
    """
    if optimizer is None:
        return []
    if not isinstance(config.memory, Memory) and (config.momentum or config.nesterov):
        raise ConfigError(
            f"momentum={config.momentum:g} and nesterov={config.nesterov} beside optimizer=: those "
            "of the optimizer move into the memory; give one of the two"
        )
    return [inner_optimizer(optimizer)]


def move_momentum(
    config: HookConfig, optimizers: Sequence[Optimizer], parameters: Iterable[Tensor]
) -> tuple[HookConfig, MomentumTransfer]:
    """Returns a config with the momentum of SGD, and the transfer of the settings.

    If the memory does not apply momentum, or SGD has none, returns the config unchanged, and an
    empty transfer.

    Args:
        config: how gradients are averaged, without momentum.
        optimizers: the optimizers of the parameters.
        parameters: the parameters with averaged gradients.

    Raises:
        ConfigError: the groups differ in momentum, use dampening or maximize, or have a momentum
            that is not that of the recipe; or the model and the optimizers have different
            parameters.
    """
    plain = [optimizer for optimizer in optimizers if isinstance(optimizer, SGD)]
    groups = [group for optimizer in plain for group in groups_of(optimizer)]
    check_recipe(config, groups)
    if not any(group["momentum"] for group in groups):
        return config, MomentumTransfer()
    momentum, nesterov = max((group["momentum"], group["nesterov"]) for group in groups)
    changed = with_momentum(config, momentum, nesterov)
    kind = changed.memory_kind
    if not kind.has_momentum:
        return config, MomentumTransfer()
    check_groups(groups, kind.id)
    check_parameters(groups, parameters)
    return changed, MomentumTransfer(
        plain, (*MOMENTUM, DECAY) if kind.decay_has_momentum else MOMENTUM
    )


def with_momentum(config: HookConfig, momentum: float, nesterov: bool) -> HookConfig:
    """Returns a config with a memory that applies the momentum, if the memory can.

    Raises:
        ConfigError: the memory has another momentum of its own, or no Nesterov momentum.
    """
    if isinstance(config.memory, Memory) and config.memory.has_momentum:
        check_same(config.memory, (momentum, nesterov), "the optimizer")
        return config
    changed = replace(config, momentum=momentum, nesterov=nesterov)
    if kind_of(changed.memory_spec) is not Momentum:
        return changed
    own = f"{Momentum.id}(beta={momentum})"
    if changed.memory_spec not in (Momentum.id, own) or nesterov:
        raise ConfigError(
            f"memory {changed.memory_spec} applies its own momentum, and the optimizer has "
            f"momentum {momentum:g}{' of Nesterov' * nesterov}: give one of the two"
        )
    return replace(config, memory=own)


def check_groups(groups: Sequence[Group], memory: str) -> None:
    """Raises ConfigError if one momentum in the memory cannot replace that of all groups."""
    kinds = {(g["momentum"], g["nesterov"], g["dampening"], g["maximize"]) for g in groups}
    if len(kinds) > 1 or groups[0]["dampening"] or groups[0]["maximize"]:
        raise ConfigError(
            f"memory {memory} applies momentum, one for all parameters and without dampening or "
            "maximize: give memory='residual', or groups that agree"
        )


def check_parameters(groups: Sequence[Group], parameters: Iterable[Tensor]) -> None:
    """Raises ConfigError if the averaged parameters are not those of the groups."""
    averaged = set(parameters)
    stepped = {p for group in groups for p in group["params"] if p.requires_grad}
    if averaged != stepped:
        raise ConfigError(
            f"{len(stepped - averaged)} of the optimizer's {len(stepped)} parameters are not the "
            f"model's, and {len(averaged - stepped)} of the model's {len(averaged)} not the "
            "optimizer's: momentum moves into a memory if both have the same"
        )
