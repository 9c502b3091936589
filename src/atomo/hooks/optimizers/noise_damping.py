"""Noise damping in hooks: the learning rate of SGD, scaled by the noise of an unbiased codec.

The rule is that of runs, `atomo.training.optim.noise_damping`. The optimizer belongs to the caller,
so its learning rates are scaled only inside `step`: schedulers and states never see the scaled
values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from torch.optim import SGD, Optimizer

from atomo.errors import ConfigError
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.options.hook_config import HookConfig

__all__ = ["damp", "release", "resolve_damping"]


def resolve_damping(
    config: HookConfig, optimizers: Sequence[Optimizer], parameters: Iterable[Tensor]
) -> tuple[HookConfig, list[Optimizer]]:
    """Returns a config with damping on or off, and the optimizers to damp.

    Args:
        config: how gradients are averaged. If `noise_damping` is None, damping is on if possible.
        optimizers: the known optimizers of the parameters.
        parameters: the parameters with averaged gradients.

    Raises:
        ConfigError: `noise_damping` is True, and damping is not possible.
    """
    reason = config.undamped_by or optimizer_reason(optimizers, parameters, config.noise_damping)
    if config.noise_damping and reason:
        raise ConfigError(f"noise_damping=True: {reason}")
    damps = config.noise_damping is not False and not reason
    damped: list[Optimizer] = [o for o in optimizers if damps and isinstance(o, SGD)]
    return replace(config, noise_damping=damps), damped


def optimizer_reason(
    optimizers: Sequence[Optimizer], parameters: Iterable[Tensor], required: bool | None
) -> str:
    """Returns the reason why the steps of these optimizers cannot be damped; empty: they can."""
    supported = [optimizer for optimizer in optimizers if isinstance(optimizer, SGD)]
    unsupported = [optimizer for optimizer in optimizers if not isinstance(optimizer, SGD)]
    if not optimizers:
        return "the hook knows no optimizer, and so no learning rate to scale; give optimizer=..."
    if unsupported and (required or not supported):
        name = type(unsupported[0]).__name__
        return f"the learning rate of SGD is scaled, and the optimizer is {name}; leave it out"
    averaged = set(parameters)
    stepped = {p for o in supported for g in o.param_groups for p in g["params"] if p.requires_grad}
    if surplus := len(stepped - averaged):
        return (
            f"{surplus} of the optimizer's {len(stepped)} parameters are not the model's, and "
            "their steps would be shortened too; give them an optimizer of their own"
        )
    return ""


def damp(optimizers: Iterable[Optimizer], meter: NoiseMeter | None) -> None:
    """Scales the learning rates of optimizers by the factor of a meter, if there is a meter."""
    if meter is not None:
        for optimizer in optimizers:
            dampers[optimizer] = Damper(optimizer, meter)


def release(optimizers: Iterable[Optimizer]) -> None:
    """Ends the scaling by former hooks of these optimizers."""
    for optimizer in optimizers:
        if former := dampers.pop(optimizer, None):
            former.remove()


@final
class Damper:
    """Step hooks of an optimizer, which scale its learning rates only inside `step`."""

    def __init__(self, optimizer: Optimizer, meter: NoiseMeter) -> None:
        self._meter = ref(meter)  # weak: the optimizer may outlive the hook
        self._scaled: list[tuple[dict[str, Any], Any, Any]] = []  # group, its rate, scaled rate
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Removes the step hooks."""
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
        self._restore()  # the post hook of a failed step did not run
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
            if group["lr"] is scaled:  # no other rate was set since
                group["lr"] = rate
        self._scaled.clear()


dampers: Final[WeakKeyDictionary[Optimizer, Damper]] = WeakKeyDictionary()
