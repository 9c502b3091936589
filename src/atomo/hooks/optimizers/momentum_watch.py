"""A warning about an optimiser whose momentum works against the memory of a hook."""

import warnings
from collections.abc import Iterable
from typing import Final, final
from weakref import WeakSet, ref

from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from atomo.hooks.hook_config import HookConfig

__all__ = ["MomentumWatch"]


@final
class MomentumWatch:
    """Looks at each SGD that steps the parameters of a hook, and warns once, on rank 0.

    A hook knows the gradients and not who steps with them, so that the first step is the first
    moment at which there is anything to see.
    """

    def __init__(
        self, config: HookConfig, rank: int, parameters: Iterable[Tensor], advice: str
    ) -> None:
        """Begins to watch, for as long as somebody refers to the watch.

        Args:
            config: how gradients are averaged.
            rank: this one's.
            parameters: those whose gradients are averaged.
            advice: the way to have momentum in the memory.
        """
        self._config, self._advice = config, advice
        # Weak: an optimiser may outlive the model of the hook.
        self._parameters = {id(one): ref(one) for one in parameters}
        if rank == 0 and (config.delays or config.has_momentum):
            watch(self)

    def look(self, optimizer: Optimizer) -> None:
        """Warns if this is an SGD with momentum that steps one of the parameters."""
        if not isinstance(optimizer, SGD):
            return
        for group in optimizer.param_groups:
            if group["momentum"] and any(self._has(one) for one in group["params"]):
                watches.discard(self)
                warnings.warn(self._text(group["momentum"]), stacklevel=4)
                return

    def _has(self, parameter: Tensor) -> bool:
        found = self._parameters.get(id(parameter))
        return found is not None and found() is parameter

    def _text(self, momentum: float) -> str:
        config, given = self._config, f"SGD's momentum of {momentum:g}"
        if config.has_momentum:
            return f"{given} comes on top of that of memory {config.memory_spec}: give SGD none"
        advice = "give SGD none" if config.codec.shared_seed else self._advice
        return (
            f"{given} repeats updates that error feedback has delivered already ({config.spec} "
            f"with memory {config.memory_spec}): {advice}"
        )


watches: Final[WeakSet[MomentumWatch]] = WeakSet()
watching: Final[list[object]] = []  # the hook in PyTorch's optimisers, once there is one


def watch(one: MomentumWatch) -> None:
    """Has a watch look at each step of any optimiser."""
    if not watching:
        watching.append(register_optimizer_step_pre_hook(look_all))
    watches.add(one)


def look_all(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Has all watches look."""
    del args, kwargs
    for one in [*watches]:
        one.look(optimizer)
