"""What a hook of FSDP2 holds: an exchange whose memories are sharded as their parameters are."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from atomo.integrations.exchange import Exchange, State
from atomo.integrations.stats import Stats

__all__ = ["ShardedExchange"]

MEMORIES: Final = "memories"  # in a state


@final
class ShardedExchange:
    """The averages between the replicas of one model."""

    def __init__(
        self, exchange: Exchange, parameters: Mapping[str, DTensor], vectors: tuple[str, ...]
    ) -> None:
        """Of an exchange of what this rank has of these parameters.

        Args:
            exchange: its parameters are the local rows.
            parameters: by name.
            vectors: what the memory keeps of each: `Memory.vectors`.
        """
        self._exchange = exchange
        self._owners = {kind + name: one for kind in vectors for name, one in parameters.items()}

    @property
    def rank(self) -> int:
        """This replica's number."""
        return self._exchange.rank

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return self._exchange.size

    @property
    def stats(self) -> Stats:
        """What it has cost this rank so far: bytes, ratio, seconds."""
        return self._exchange.stats

    def __repr__(self) -> str:
        return f"Sharded{self._exchange!r}"

    def at_rate(self, rate: float) -> None:
        """Tells the learning rate of the next step to a memory in units of the update."""
        self._exchange.at_rate(rate)

    def state_dict(self, ranks: int | None = None) -> State:
        """What this rank keeps back, for torch.distributed.checkpoint, from all ranks together.

        Each replica's memories are DTensors over its shards, as the parameters are, so that they
        are found again on another number of shards.

        Args:
            ranks: how many replicas saved what is to be filled in; None: this is to be saved.
        """
        state = self._exchange.state_dict(ranks)
        spread = {number: self._spread(kept) for number, kept in state[MEMORIES].items()}
        return state | {MEMORIES: spread}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces what is kept back and the number of the step.

        From another number of replicas the sum of what they kept stays what it was.

        Raises:
            CheckpointError: it is no such state, or of another model or memory.
        """
        own = {number: local(kept) for number, kept in state.get(MEMORIES, {}).items()}
        self._exchange.load_state_dict({**state, MEMORIES: own})

    def _spread(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A memory's entries, those of parameters as parameters lie: all ranks have all of them,
        also where a rank has no rows.
        """
        mine = {entry: one.to_local().detach() for entry, one in self._owners.items()}
        none = {entry: torch.empty_like(one) for entry, one in mine.items() if not one.numel()}
        return {
            entry: as_rows_of(self._owners[entry], one) if entry in self._owners else one
            for entry, one in (none | {**kept}).items()
        }


def as_rows_of(parameter: DTensor, rows: Tensor) -> DTensor:
    """A tensor like a parameter, of which this rank has these rows."""
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(rows, mesh, placements, shape=shape, stride=stride)


def local(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A memory's entries, as far as this rank has them."""
    mine = {n: one.to_local() if isinstance(one, DTensor) else one for n, one in kept.items()}
    return {name: one for name, one in mine.items() if one.numel()}
