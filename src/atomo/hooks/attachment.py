"""Attachment of hooks to the models that a framework wraps in DistributedDataParallel."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from atomo.errors import ConfigError
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.ddp import ADVICE, averaged_by, hook_of
from atomo.hooks.optimizers.momentum_transfer import (
    as_optimizers,
    inner_optimizer,
    move_momentum,
)
from atomo.hooks.options.checks import check_timeout
from atomo.hooks.options.hook_config import HookConfig

__all__ = ["HookAttachment", "warn_of_nothing"]


@final
@dataclass(frozen=True)
class AttachedModel:
    """A wrapped model, and the exchange of its gradients."""

    model: nn.Module
    exchange: Exchange


@final
class HookAttachment:
    """The attachment of hooks to the models that a framework wraps in DistributedDataParallel."""

    def __init__(
        self, config: HookConfig, timeout_s: float | None, optimizer: object = None
    ) -> None:
        """Creates an attachment without models.

        Args:
            config: how gradients are averaged.
            timeout_s: the longest wait for another rank, seconds.
            optimizer: its momentum moves to the memory; None: that of the optimizers of the
                framework.

        Raises:
            ConfigError: options contradict each other.
        """
        config.check()
        check_timeout(timeout_s)
        self._config, self._timeout_s = config, timeout_s
        self._optimizers = as_optimizers(config, optimizer)
        self._attached: list[AttachedModel] = []

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchange of each model, in the order in which the models were wrapped."""
        return [attached.exchange for attached in self._attached]

    def attach(
        self,
        ddp: DistributedDataParallel,
        scaler: GradScaler | None,
        optimizers: Iterable[object] = (),
    ) -> Exchange:
        """Attaches a hook to a model. All ranks attach the same models, in the same order.

        If the model had a hook already, the new hook continues from its state.

        Args:
            ddp: the wrapped model.
            scaler: the gradient scaler of the loss.
            optimizers: the optimizers of the framework, for this model or another.

        Raises:
            ConfigError: as from `ddp_hook`.
        """
        skips = scaler is not None and scaler.is_enabled()
        config = replace(self._config, skips=skips)
        if any(attached.model is ddp.module for attached in self._attached):
            # The memory object belongs to the first hook; a new one continues from its state.
            config = replace(config, memory=config.memory_spec)
        movable, advice = self._movable(ddp, optimizers)
        enabled = scaler if skips else None
        exchange, hook = hook_of(ddp, config, enabled, None, self._timeout_s, movable, advice)
        ddp.register_comm_hook(exchange, hook)
        for number, attached in enumerate(self._attached):
            if attached.model is ddp.module:  # wrapped again: another fit, or a smaller batch
                exchange.load_state_dict(attached.exchange.state_dict())
                self._attached[number] = AttachedModel(ddp.module, exchange)
                return exchange
        self._attached.append(AttachedModel(ddp.module, exchange))
        return exchange

    def _movable(
        self, ddp: DistributedDataParallel, optimizers: Iterable[object]
    ) -> tuple[list[Optimizer], str]:
        """Returns the optimizers with movable momentum, and the advice of a warning otherwise."""
        if self._optimizers or self._config.momentum:
            return self._optimizers, ADVICE
        parameters = averaged_by(ddp).values()
        try:
            inner = [inner_optimizer(optimizer) for optimizer in optimizers]
            own = [optimizer for optimizer in inner if steps(optimizer, parameters)]
            move_momentum(self._config, own, parameters)
        except ConfigError as error:
            if self._config.recipe:
                raise
            # The transfer is a default, so training continues without it.
            return [], f"it does not move into the memory: {error}"
        return own, ADVICE

    def at_rate(self, rate: float) -> None:
        """Passes the learning rate of the next step to memories in units of the update."""
        for exchange in self.exchanges:
            exchange.at_rate(rate)


def steps(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """True if an optimizer steps at least one of these parameters."""
    stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return not stepped.isdisjoint(parameters)


def warn_of_nothing(checkpoint: object) -> None:
    """Warns that a checkpoint has no memories."""
    warnings.warn(f"{checkpoint} was saved without compression: memories start empty", stacklevel=3)
