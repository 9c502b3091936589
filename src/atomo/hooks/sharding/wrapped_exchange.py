"""The common part of the exchanges of FSDP2's hooks, which differ in the form of their states."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from torch.distributed.tensor import DTensor

from atomo.hooks.adapter.averager import Stats
from atomo.hooks.adapter.exchange import Exchange

__all__ = ["MEMORIES", "WrappedExchange"]

MEMORIES: Final = "memories"  # in a state


class WrappedExchange(ABC):
    """An exchange whose states belong to sharded parameters. Abstract; subclasses are final."""

    def __init__(
        self, exchange: Exchange, parameters: Mapping[str, DTensor], vectors: tuple[str, ...]
    ) -> None:
        """Wraps an exchange of parts of these parameters.

        Args:
            exchange: the exchange of the parts.
            parameters: the sharded parameters by name.
            vectors: the prefixes of a parameter's entries in the memory: `Memory.vectors`.
        """
        self._exchange, self._parameters = exchange, dict(parameters)
        self._owners = {kind + name: p for kind in vectors for name, p in parameters.items()}

    @property
    def rank(self) -> int:
        """The number of this rank among those that exchange."""
        return self._exchange.rank

    @property
    def size(self) -> int:
        """The number of ranks, or of replicas, that exchange."""
        return self._exchange.size

    @property
    def stats(self) -> Stats:
        """The costs of this rank so far: bytes, ratio, seconds."""
        return self._exchange.stats

    def __repr__(self) -> str:
        return f"{type(self).__name__.removesuffix('Exchange')}{self._exchange!r}"

    def at_rate(self, rate: float) -> None:
        """Passes the learning rate of the next step to a memory in units of the update."""
        self._exchange.at_rate(rate)

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state: the memories and the number of the step.

        Raises:
            CheckpointError: the state is invalid, or belongs to another model or memory.
        """
