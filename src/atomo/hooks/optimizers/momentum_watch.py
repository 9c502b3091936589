"""A warning about SGD momentum that repeats the values of error feedback."""

import warnings
from collections.abc import Iterable
from typing import Final, final
from weakref import WeakSet, ref

from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from atomo.config.resolve_codec import delays_all_entries
from atomo.hooks.options.hook_config import HookConfig

__all__ = ["MomentumWatch", "watch_momentum"]

HEAVY_BALL: Final = (
    "{subject} trains worse with what {code} sends late: give SGD nesterov=True, which makes up "
    "for the delay"
)


@final
class MomentumWatch:
    """Watcher of the SGDs that step the parameters of a hook; it warns once, on rank 0.

    A hook without `optimizer=` does not know the optimizers, so the watch checks them at their
    first step.
    """

    def __init__(
        self, config: HookConfig, rank: int, parameters: Iterable[Tensor], advice: str
    ) -> None:
        """Starts the watch, which ends when no reference to it remains.

        Args:
            config: how gradients are averaged.
            rank: the number of this rank.
            parameters: the parameters with averaged gradients.
            advice: the end of the warning: how momentum moves to the memory.
        """
        self._config, self._advice = config, advice
        # Weak references: an optimizer may outlive the model of the hook.
        self._parameters = {id(parameter): ref(parameter) for parameter in parameters}
        if rank == 0 and (config.delays or config.has_momentum or config.delays_factors):
            start(self)

    def look(self, optimizer: Optimizer) -> None:
        """Warns if an optimizer is an SGD with momentum for at least one of the parameters."""
        if not isinstance(optimizer, SGD):
            return
        for group in optimizer.param_groups:
            repeats = group["momentum"] and not (self._config.delays_factors and group["nesterov"])
            if repeats and any(map(self._has, group["params"])):
                watches.discard(self)
                warnings.warn(self._text(group["momentum"]), stacklevel=4)
                return

    def _has(self, parameter: Tensor) -> bool:
        reference = self._parameters.get(id(parameter))
        return reference is not None and reference() is parameter

    def _text(self, momentum: float) -> str:
        config, subject = self._config, f"SGD's momentum of {momentum:g}"
        if config.has_momentum:
            return f"{subject} comes on top of that of memory {config.memory_spec}: give SGD none"
        if config.delays_factors:
            return HEAVY_BALL.format(subject=subject, code=config.code)
        advice = "give SGD none" if config.codec.shared_seed else self._advice
        return (
            f"{subject} repeats updates that error feedback has delivered already ({config.spec} "
            f"with memory {config.memory_spec}): {advice}"
        )


def watch_momentum(
    config: HookConfig, moved: object, rank: int, parameters: Iterable[Tensor], advice: str
) -> MomentumWatch | None:
    """Returns the watch of a hook; None if momentum moved to the memory: then warns on rank 0 if
    it is heavy-ball momentum of what waits in every entry.

    Args:
        config: how gradients are averaged.
        moved: true if momentum moved.
        rank: the number of this rank.
        parameters: the parameters with averaged gradients.
        advice: as of `MomentumWatch`.
    """
    if not moved:
        return MomentumWatch(config, rank, parameters, advice)
    waits = delays_all_entries(config.codecs, config.memory_spec)
    if rank == 0 and config.momentum and not config.nesterov and waits:
        subject = f"SGD's momentum of {config.momentum:g}"
        warnings.warn(HEAVY_BALL.format(subject=subject, code=config.code), stacklevel=4)
    return None


watches: Final[WeakSet[MomentumWatch]] = WeakSet()
watching: Final[list[object]] = []  # the handle of the step hook of all optimizers, once registered


def start(watch: MomentumWatch) -> None:
    """Registers a watch for the steps of all optimizers."""
    if not watching:
        watching.append(register_optimizer_step_pre_hook(look_all))
    watches.add(watch)


def look_all(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Calls all watches with an optimizer that is about to step."""
    del args, kwargs
    for watch in [*watches]:
        watch.look(optimizer)
