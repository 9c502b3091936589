"""The optimizer of local steps, for training loops that step an optimizer themselves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, final

from torch.optim import Optimizer

from atomo.errors import ConfigError
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.local.replica import LocalReplica
from atomo.options.outer import Outer

__all__ = ["LocalStepsOptimizer"]


@final
class LocalStepsOptimizer(Optimizer):
    """An optimizer that counts its steps, and exchanges fragments when they are due.

    It is a subclass of Optimizer because schedulers and scalers require one.
    """

    # A scaler that finds a fused optimizer would leave the check for infinities to it.
    _step_supports_amp_scaling: ClassVar[bool] = False

    def __init__(self, optimizer: Optimizer, replica: LocalReplica) -> None:
        # Optimizer.__init__ would create parameter groups and state that are never used.
        self.optimizer = optimizer
        self._replica = replica

    def __getattr__(self, name: str) -> Any:
        """Returns `param_groups`, `state`, `defaults` and hooks of the wrapped optimizer."""
        return getattr(self.__dict__["optimizer"], name)

    @property
    def exchange(self) -> Exchange:
        """The exchange, with the memories and `stats`."""
        return self._replica.exchange

    @property
    def outer(self) -> Outer:
        """The outer optimizer."""
        return self._replica.outer

    @property
    def steps(self) -> int:
        """The number of steps of the wrapped optimizer."""
        return self._replica.steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of the wrapped optimizer, and the part of an exchange that is due after it.

        Raises:
            Diverged: the difference of a replica is not finite, on this rank or another.
            AtomoError: the exchange failed.
        """
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._replica.after_step()
        return loss

    def anchor(self) -> AbstractContextManager[None]:
        """Puts the anchor into the model for a block, to evaluate it or to save it.

        The anchor is the same on all ranks at each step, and needs no communication. Buffers are
        those of the last exchange.
        """
        return self._replica.anchor()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this replica, without the weights of the model.

        To continue in the middle of a round, each rank saves this and `model.state_dict()`. With
        `overlap`, the call waits for the exchange in flight.
        """
        return self._replica.state_dict()

    def gather(self) -> dict[str, Any] | None:
        """Gathers the memories and the moments of all ranks at rank 0; None on other ranks.

        All ranks must call it. `load_state_dict` takes the state on any number of ranks, each of
        which begins at the anchor, with the moments of a rank that has saved: its own, or those of
        its number modulo the number of ranks that saved. The local steps since the last exchange
        are not in it.
        """
        return self._replica.gather()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `state_dict` or `gather`.

        A state of the same number of ranks continues in the middle of a round; load the weights of
        the same rank into the model. Otherwise the model gets the anchor, after the step for a
        fragment that was in flight, and the steps to the next exchange begin again.

        Raises:
            CheckpointError: the state has another format, model, memory, or other rounds.
        """
        self._replica.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ConfigError: ranks agreed on the parameters when the optimizer was wrapped."""
        raise ConfigError("add all groups of parameters before local_steps")

    def __repr__(self) -> str:
        rounds = self._replica.rounds
        return f"LocalStepsOptimizer({self.optimizer!r}, {rounds}, outer={self.outer})"
