"""Momentum and weight decay that a memory applies in an optimiser's place."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import SGD, Optimizer

from atomo.errors import CheckpointError, ConfigError
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.optimizers.weight_decay import NO_DECAY, Decay
from atomo.hooks.recipe_coding import check_recipe
from atomo.hooks.states.own_memory import check_same
from atomo.memory import Memory, kind_of
from atomo.memory.momentum import Momentum

__all__ = ["MomentumTransfer", "given_optimizers", "inner_optimizer", "move_momentum"]

MOMENTUM: Final = ("momentum", "nesterov")
DECAY: Final = "weight_decay"

Group = dict[str, Any]

transfers: Final[WeakKeyDictionary[Optimizer, list[Group]]] = WeakKeyDictionary()
"""The settings that each group of an optimiser had, and which a memory applies now."""


@final
@dataclass(frozen=True)
class MomentumTransfer:
    """The settings that leave some optimisers. States of these still have them, as plain SGD does,
    so that a state may be loaded with a hook or without, and before or behind it.
    """

    optimizers: Sequence[Optimizer] = ()
    names: tuple[str, ...] = MOMENTUM

    def __bool__(self) -> bool:
        return bool(self.optimizers)

    def decay(self, parameters: Mapping[str, Tensor]) -> Decay:
        """Returns the weight decay that left the optimisers."""
        return Decay(parameters, self._decay_of) if DECAY in self.names else NO_DECAY

    def _decay_of(self, parameter: Tensor) -> float:
        optimizer, number = self._groups[parameter]
        return float(transfers[optimizer][number][DECAY])

    @cached_property
    def _groups(self) -> Mapping[Tensor, tuple[Optimizer, int]]:
        """Maps each parameter to its optimiser, and the number of its group there."""
        return {
            parameter: (optimizer, number)
            for optimizer in self.optimizers
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }

    def take(self) -> None:
        """Takes the settings from the optimisers, once the memory that applies them is there."""
        for optimizer in self.optimizers:
            groups = groups_of(optimizer)
            if optimizer not in transfers:
                optimizer.register_state_dict_post_hook(put_back)
                optimizer.register_load_state_dict_post_hook(take_again)
                optimizer.register_step_pre_hook(check_taken)
            transfers[optimizer] = [{name: group[name] for name in self.names} for group in groups]
            clear(optimizer)


def groups_of(optimizer: Optimizer) -> list[Group]:
    """Returns the groups of an optimiser, with the settings that it had before any were moved."""
    own = transfers.get(optimizer, [])
    settings = [*own, *({} for _ in optimizer.param_groups[len(own) :])]
    return [g | one for g, one in zip(optimizer.param_groups, settings, strict=True)]


def clear(optimizer: Optimizer) -> None:
    """Has an optimiser apply none of the settings that were moved."""
    for group, own in zip(optimizer.param_groups, transfers[optimizer], strict=True):
        group |= {name: type(value)() for name, value in own.items()}
    for state in optimizer.state.values():
        state.pop("momentum_buffer", None)


def put_back(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Completes a state that is being saved."""
    for group, own in zip(state["param_groups"], transfers[optimizer], strict=True):
        group |= own


def take_again(optimizer: Optimizer) -> None:
    """Takes the settings that a loaded state has, of which the weight decay counts from then on.

    Raises:
        CheckpointError: the momentum is not that of the memory.
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
    """Raises ConfigError where somebody has set again, before a step, a setting that was moved."""
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
    """Returns the optimiser of torch.optim that others may have wrapped, such as Accelerate.

    Raises:
        ConfigError: it is none, or averages gradients itself.
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


def given_optimizers(config: HookConfig, optimizer: object) -> list[Optimizer]:
    """Lists the optimiser that a hook is given; empty for None.

    Raises:
        ConfigError: it is none, or momentum is given beside it.
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
    """Returns the config with the momentum of SGD, where the memory is one that applies it; and the
    settings to take from the optimisers then.

    Args:
        config: how gradients are averaged, without momentum.
        optimizers: that step the parameters.
        parameters: whose gradients are averaged.

    Raises:
        ConfigError: the groups have different momentum, dampening, or maximise, or a momentum that
            is not the recipe's; or parameters of the model and of the optimisers differ.
    """
    plain = [optimizer for optimizer in optimizers if isinstance(optimizer, SGD)]
    groups = [group for optimizer in plain for group in groups_of(optimizer)]
    check_recipe(config, groups)
    if not any(group["momentum"] for group in groups):
        return config, MomentumTransfer()
    momentum, nesterov = max((group["momentum"], group["nesterov"]) for group in groups)
    given = with_momentum(config, momentum, nesterov)
    kind = given.memory_kind
    if not kind.has_momentum:
        return config, MomentumTransfer()
    check_groups(groups, kind.id)
    check_parameters(groups, parameters)
    return given, MomentumTransfer(
        plain, (*MOMENTUM, DECAY) if kind.decay_has_momentum else MOMENTUM
    )


def with_momentum(config: HookConfig, momentum: float, nesterov: bool) -> HookConfig:
    """Returns the config whose memory applies a momentum.

    Raises:
        ConfigError: the memory has another momentum of its own, or no Nesterov's.
    """
    if isinstance(config.memory, Memory) and config.memory.has_momentum:
        check_same(config.memory, (momentum, nesterov), "the optimizer")
        return config
    given = replace(config, momentum=momentum, nesterov=nesterov)
    if kind_of(given.memory_spec) is not Momentum:
        return given
    own = f"{Momentum.id}(beta={momentum})"
    if given.memory_spec not in (Momentum.id, own) or nesterov:
        raise ConfigError(
            f"memory {given.memory_spec} applies its own momentum, and the optimizer has momentum "
            f"{momentum:g}{' of Nesterov' * nesterov}: give one of the two"
        )
    return replace(config, memory=own)


def check_groups(groups: Sequence[Group], memory: str) -> None:
    """Raises ConfigError where one memory cannot do what all groups do."""
    kinds = {(g["momentum"], g["nesterov"], g["dampening"], g["maximize"]) for g in groups}
    if len(kinds) > 1 or groups[0]["dampening"] or groups[0]["maximize"]:
        raise ConfigError(
            f"memory {memory} applies momentum, one for all parameters and without dampening or "
            "maximize: give memory='residual', or groups that agree"
        )


def check_parameters(groups: Sequence[Group], parameters: Iterable[Tensor]) -> None:
    """Raises ConfigError where a memory would give momentum to other parameters than the groups."""
    averaged = set(parameters)
    stepped = {p for group in groups for p in group["params"] if p.requires_grad}
    if averaged != stepped:
        raise ConfigError(
            f"{len(stepped - averaged)} of the optimizer's {len(stepped)} parameters are not the "
            f"model's, and {len(averaged - stepped)} of the model's {len(averaged)} not the "
            "optimizer's: momentum moves into a memory where both have the same"
        )
