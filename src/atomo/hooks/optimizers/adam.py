"""Adam's update, computed by the memory in place of the optimizer, and the step that remains."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from atomo.config.resolve_codec import AUTO_CODEC, draws_atoms, required_memory
from atomo.errors import ConfigError
from atomo.hooks.optimizers.weight_decay import NO_DECAY, Decay
from atomo.hooks.options.hook_config import GATHERS, HookConfig
from atomo.memory import EfficientAdam, Memory, NoMemory, kind_of, make_memory

__all__ = ["PlainStep", "move_adam", "warn_of_adam", "warn_of_drawn_atoms"]

Group = dict[str, Any]
UNSUPPORTED: Final = ("amsgrad", "maximize")


@final
class PlainStep:
    """Step p = p - lr (u + wd p) that replaces that of an Adam; the memory computes the update u.

    The optimizer's own step still runs, for schedulers and step hooks, but without gradients. The
    weight decay of AdamW is applied here. That of Adam is part of the gradient, and is added before
    the memory.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Takes over an optimizer. Its groups have the settings that the memory applies."""
        self._optimizer = optimizer
        self._applied = settings_of(optimizer.param_groups[0])
        self._hidden: list[tuple[Tensor, Tensor | None]] = []

    def decay(self, parameters: Mapping[str, Tensor]) -> Decay:
        """Returns the weight decay that is added to gradients before the memory."""
        if not any(map(couples, self._optimizer.param_groups)):
            return NO_DECAY
        groups = {p: group for group in self._optimizer.param_groups for p in group["params"]}
        return Decay(parameters, lambda parameter: coupled(groups[parameter]))

    @torch.no_grad()
    def take(self) -> None:
        """Applies the averaged update, and hides the gradients from the optimizer until `put_back`.

        Raises:
            ConfigError: the betas or the eps of a group have changed, and the memory's have not.
        """
        for group in self._optimizer.param_groups:
            self._check(group)
            rate, decay = float(group["lr"]), group["weight_decay"]
            stepped = [p for p in group["params"] if p.grad is not None]
            if decay and not couples(group):
                torch._foreach_mul_(stepped, 1 - rate * decay)
            for parameter in stepped:
                parameter.add_(parameter.grad.to(parameter.dtype), alpha=-rate)
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def put_back(self) -> None:
        """Restores the gradients of the parameters."""
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden.clear()

    def _check(self, group: Group) -> None:
        if settings_of(group) != self._applied:
            raise ConfigError(
                f"the memory applies {spelled(self._applied)}, and a group of the optimizer has "
                f"{spelled(settings_of(group))} by now: give schedulers that leave betas alone, "
                "such as OneCycleLR(..., cycle_momentum=False), or memory='residual'"
            )


def settings_of(group: Group) -> tuple[float, float, float]:
    """Returns beta1, beta2 and eps of a group."""
    first, second = group["betas"]
    return float(first), float(second), float(group["eps"])


def spelled(settings: tuple[float, float, float]) -> str:
    """Returns the settings of an Adam in words."""
    return "betas ({:g}, {:g}) and eps {:g}".format(*settings)


def couples(group: Group) -> bool:
    """True if the weight decay of a group is part of the gradient, as in Adam, unlike AdamW."""
    return bool(group["weight_decay"]) and not group.get("decoupled_weight_decay", False)


def coupled(group: Group) -> float:
    """Returns the weight decay that is part of the gradients of a group."""
    return float(group["weight_decay"]) if couples(group) else 0.0


def move_adam(
    config: HookConfig, optimizer: Optimizer, *, scaled: bool
) -> tuple[HookConfig, PlainStep | None]:
    """Returns a config with a memory that computes Adam's update, and the step that remains.

    If the memory does not compute the update, or "auto" cannot choose one that does, returns the
    config unchanged, and None.

    Args:
        config: how gradients are averaged.
        optimizer: the optimizer of the parameters.
        scaled: True if a scaler multiplies the loss.

    Raises:
        ConfigError: the memory cannot compute the update of this optimizer.
    """
    reason = unsupported(optimizer, scaled=scaled)
    if not made_by_memory(config):
        return config, None
    if reason:
        if config.memory == AUTO_CODEC:
            return config, None
        raise ConfigError(f"memory {config.memory_spec} makes the update of Adam, and {reason}")
    return moved(config, settings_of(optimizer.param_groups[0])), PlainStep(optimizer)


def made_by_memory(config: HookConfig) -> bool:
    """True if the memory, or the default memory with Adam, computes the update."""
    if config.memory != AUTO_CODEC:
        return config.memory_kind.makes_update
    if config.low_rank:
        return False
    return kind_of(required_memory(config.codecs, GATHERS, 0.0, "adam")).makes_update


def unsupported(optimizer: Optimizer, *, scaled: bool) -> str:
    """Returns the reason why no memory can compute the update of an optimizer; empty: it can."""
    if type(optimizer) not in (Adam, AdamW):
        return (
            f"the optimizer is {type(optimizer).__name__}: give torch.optim.AdamW or Adam, or "
            "another memory"
        )
    groups = optimizer.param_groups
    if len({settings_of(group) for group in groups}) > 1:
        return "the optimizer's groups differ in betas or eps: give them the same"
    for name in UNSUPPORTED:
        if any(group[name] for group in groups):
            return f"the optimizer has {name}=True: leave it out"
    if scaled and any(group["fused"] for group in groups):
        return "a fused optimizer steps by scaled gradients: leave fused=True out"
    return ""


def moved(config: HookConfig, settings: tuple[float, float, float]) -> HookConfig:
    """Returns a config with a memory that has the betas and the eps of the optimizer.

    Raises:
        ConfigError: the memory was given with other betas or another eps.
    """
    if config.memory in (AUTO_CODEC, EfficientAdam.id):
        own = EfficientAdam(*settings).spec
        return replace(config, memory=own, plain_step=True)
    memory = config.memory if isinstance(config.memory, Memory) else make_memory(config.memory)
    if memory.spec != EfficientAdam(*settings).spec:
        raise ConfigError(
            f"memory {memory.spec} was given, and the optimizer has {spelled(settings)}: give both "
            "the same"
        )
    return replace(config, plain_step=True)


def warn_of_adam(config: HookConfig, optimizers: Sequence[Optimizer], rank: int) -> None:
    """Warns on rank 0 if a hook has an Adam that loses less with `wrap_optimizer`."""
    supported = any(not unsupported(optimizer, scaled=False) for optimizer in optimizers)
    if rank == 0 and supported and config.memory == AUTO_CODEC and made_by_memory(config):
        warnings.warn(
            f"with {config.spec}, Adam behind a hook loses more than memory 'adam', the default of "
            "atomo.wrap_optimizer; with a hook, dense_steps= or warmup_steps= of a tenth of the "
            "steps help",
            stacklevel=4,  # the caller of the hook, which a decorator wraps
        )


def warn_of_drawn_atoms(config: HookConfig, optimizers: Sequence[Optimizer], rank: int) -> None:
    """Warns on rank 0 if Adam steps by atoms that a codec draws, as in ATOMO."""
    adam = any(isinstance(optimizer, Adam | AdamW) for optimizer in optimizers)
    if config.low_rank or not adam or config.memory_spec != NoMemory.id:
        return
    if rank == 0 and draws_atoms(config.codecs):
        warnings.warn(
            f"{config.spec} draws the atoms that it sends, and Adam does not shorten its steps for "
            "their noise, with which a transformer trains much worse; give 'svd(selection=top)', "
            "which keeps the other atoms for later",
            stacklevel=4,  # as above
        )
