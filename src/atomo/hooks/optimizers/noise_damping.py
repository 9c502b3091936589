"""Noise damping in hooks: SGD's learning rate, shortened by the noise of an unbiased codec.

The rule is that of runs, `atomo.training.optim.noise_damping`. Here the optimiser is the caller's:
its learning rates are scaled inside `step` alone, so that schedulers and states never have the
scaled values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from torch.optim import SGD, Optimizer

from atomo.errors import ConfigError
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.optimizers.noise_meter import NoiseMeter

__all__ = ["damp", "release", "resolve_damping"]


def resolve_damping(
    config: HookConfig, optimizers: Sequence[Optimizer], parameters: Iterable[Tensor]
) -> tuple[HookConfig, list[Optimizer]]:
    """Returns the config with damping on or off, and the optimisers whose steps it shortens.

    Args:
        config: how gradients are averaged; a `noise_damping` of None: on where possible.
        optimizers: step the parameters, as far as is known.
        parameters: whose gradients are averaged.

    Raises:
        ConfigError: `noise_damping` is True, and damping is impossible.
    """
    reason = config.undamped_by or optimizer_reason(optimizers, parameters, config.noise_damping)
    if config.noise_damping and reason:
        raise ConfigError(f"noise_damping=True: {reason}")
    damps = config.noise_damping is not False and not reason
    chosen: list[Optimizer] = [one for one in optimizers if isinstance(one, SGD)] if damps else []
    return replace(config, noise_damping=damps), chosen


def optimizer_reason(
    optimizers: Sequence[Optimizer], parameters: Iterable[Tensor], asked: bool | None
) -> str:
    """Returns the reason why no step of these optimisers can be shortened; empty: they can."""
    plain = [one for one in optimizers if isinstance(one, SGD)]
    others = [one for one in optimizers if not isinstance(one, SGD)]
    if not optimizers:
        return "the hook knows no optimizer whose learning rate it could scale; give optimizer=..."
    if others and (asked or not plain):
        name = type(others[0]).__name__
        return f"the learning rate of SGD is scaled, and the optimizer is {name}; leave it out"
    averaged = set(parameters)
    stepped = {p for o in plain for g in o.param_groups for p in g["params"] if p.requires_grad}
    if surplus := len(stepped - averaged):
        return (
            f"{surplus} of the optimizer's {len(stepped)} parameters are not the model's, and "
            "their steps would be shortened too; give them an optimizer of their own"
        )
    return ""


def damp(optimizers: Iterable[Optimizer], meter: NoiseMeter | None) -> None:
    """Scales the learning rates of optimisers by the factor of a meter, if there is one."""
    if meter is not None:
        for optimizer in optimizers:
            dampers[optimizer] = Damper(optimizer, meter)


def release(optimizers: Iterable[Optimizer]) -> None:
    """Ends the scaling by former hooks of these optimisers."""
    for optimizer in optimizers:
        if former := dampers.pop(optimizer, None):
            former.remove()


@final
class Damper:
    """Step hooks of one optimiser, which scale its learning rates in `step` alone."""

    def __init__(self, optimizer: Optimizer, meter: NoiseMeter) -> None:
        self._meter = ref(meter)  # the optimiser may outlive the hook
        self._scaled: list[tuple[dict[str, Any], Any, Any]] = []  # groups, with both their rates
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Leaves the optimiser as it was."""
        for handle in self._handles:
            handle.remove()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._scale(optimizer)
            return None
        return (optimizer, self._scaling(optimizer, closure)), {}

    def _scaling(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a closure that averages, and then scales by the factor of this step."""

        def evaluate() -> Any:
            loss = closure()
            self._scale(optimizer)
            return loss

        return evaluate

    def _scale(self, optimizer: Optimizer) -> None:
        self._restore()  # a step that failed has not come to its end
        meter = self._meter()
        if meter is None or meter.factor == 1:
            return
        for group in optimizer.param_groups:
            rate = group["lr"]
            group["lr"] = rate * meter.factor
            self._scaled.append((group, rate, group["lr"]))

    def _after(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        del optimizer, args, kwargs
        self._restore()

    def _restore(self) -> None:
        for group, rate, scaled in self._scaled:
            if group["lr"] is scaled:  # nobody has set another one since
                group["lr"] = rate
        self._scaled.clear()


dampers: Final[WeakKeyDictionary[Optimizer, Damper]] = WeakKeyDictionary()
