"""The hook, at whatever models a framework wraps in DistributedDataParallel."""

import warnings
from dataclasses import dataclass, replace
from typing import final

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from atomo.integrations.ddp import hook_of
from atomo.integrations.exchange import Exchange
from atomo.integrations.making import Choice

__all__ = ["Plug", "warn_of_nothing"]


@final
@dataclass(frozen=True)
class Socket:
    """A wrapped model, and the averages of its gradients."""

    model: nn.Module
    exchange: Exchange


@final
class Plug:
    """What a framework is given, once: it hooks each model when the framework has wrapped it."""

    def __init__(self, choice: Choice, timeout_s: float | None) -> None:
        self._choice, self._timeout_s = choice, timeout_s
        self._sockets: list[Socket] = []

    @property
    def exchanges(self) -> list[Exchange]:
        """Of each model, in the order in which they were wrapped: statistics and states."""
        return [socket.exchange for socket in self._sockets]

    def attach(self, ddp: DistributedDataParallel, scaler: GradScaler | None) -> Exchange:
        """Hooks a model; every rank does so, in the same order. What it kept before, it keeps.

        Raises:
            ConfigError: as of `ddp_hook`.
        """
        skips = scaler is not None and scaler.is_enabled()
        choice = replace(self._choice, skips=skips)
        exchange, hook = hook_of(ddp, choice, scaler if skips else None, None, self._timeout_s)
        ddp.register_comm_hook(exchange, hook)
        for number, socket in enumerate(self._sockets):
            if socket.model is ddp.module:  # wrapped anew: another fit, or a smaller batch
                exchange.load_state_dict(socket.exchange.state_dict())
                self._sockets[number] = Socket(ddp.module, exchange)
                return exchange
        self._sockets.append(Socket(ddp.module, exchange))
        return exchange

    def at_rate(self, rate: float) -> None:
        """Tells the learning rate of the next step to memories in units of the update."""
        for exchange in self.exchanges:
            exchange.at_rate(rate)


def warn_of_nothing(where: object) -> None:
    """Warns that a checkpoint knows of no compression."""
    warnings.warn(
        f"{where} was saved without compression: memories begin with nothing", stacklevel=3
    )
