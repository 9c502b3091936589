"""The exchange of a hook of FSDP2, whose memories are sharded as their parameters are."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from atomo.errors import ConfigError
from atomo.hooks.adapter.exchange import FACTORS, Exchange, State
from atomo.hooks.adapter.stats import Stats

__all__ = ["ShardedExchange"]

MEMORIES: Final = "memories"  # in a state
SHARDS: Final = "shards"
SHARD: Final = ", shard "  # in names of factors


@final
class ShardedExchange:
    """The averages between the replicas of one model."""

    def __init__(
        self, exchange: Exchange, parameters: Mapping[str, DTensor], vectors: tuple[str, ...]
    ) -> None:
        """Wraps the exchange of the rows that this rank has of these parameters.

        Args:
            exchange: its parameters are the local rows.
            parameters: by name.
            vectors: what the memory keeps of each: `Memory.vectors`.
        """
        self._exchange, self._parameters = exchange, dict(parameters)
        self._owners = {kind + name: one for kind in vectors for name, one in parameters.items()}

    @property
    def rank(self) -> int:
        """The number of this replica."""
        return self._exchange.rank

    @property
    def size(self) -> int:
        """The number of replicas."""
        return self._exchange.size

    @property
    def stats(self) -> Stats:
        """The costs of this rank so far: bytes, ratio, seconds."""
        return self._exchange.stats

    def __repr__(self) -> str:
        return f"Sharded{self._exchange!r}"

    def at_rate(self, rate: float) -> None:
        """Tells the learning rate of the next step to a memory in units of the update."""
        self._exchange.at_rate(rate)

    def state_dict(self, ranks: int | None = None, shards: int | None = None) -> State:
        """Returns what this rank keeps back, for torch.distributed.checkpoint on all ranks.

        Each replica's memories are DTensors over its shards, as the parameters are, so that they
        are found again on another number of shards. The factors of PowerSGD and ACP-SGD belong to
        one shard each, and have its number in their names: on another number of shards they begin
        anew.

        Args:
            ranks: how many replicas saved what is to be filled in; None: this is to be saved.
            shards: how many shards a replica had there; None: as many as here.

        Raises:
            ConfigError: `shards` is no whole number from 1.
        """
        if shards is not None and (type(shards) is not int or shards < 1):
            raise ConfigError(f"shards must be a whole number from 1, got {shards!r}")
        state = self._exchange.state_dict(ranks)
        if FACTORS in state:
            state |= self._named(state.pop(FACTORS), shards)
        spread = {number: self._spread(kept) for number, kept in state[MEMORIES].items()}
        return state | {MEMORIES: spread}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces what is kept back and the number of the step.

        From another number of replicas the sum of what they kept stays what it was. Factors of
        another number of shards are left out: the next step draws new ones.

        Raises:
            CheckpointError: it is no such state, or of another model or memory.
        """
        own = {number: local(kept) for number, kept in state.get(MEMORIES, {}).items()}
        factors = self._own(state.get(FACTORS, {}))
        self._exchange.load_state_dict({**state, FACTORS: factors, MEMORIES: own})

    @property
    def _shards(self) -> int:
        """Returns the number of shards of a replica."""
        return max(parameter.device_mesh.size() for parameter in self._parameters.values())

    def _named(self, factors: Mapping[str, Tensor], shards: int | None) -> State:
        """Returns factors by names that no other shard has; none from other numbers of shards.

        Equal names are replicas to torch.distributed.checkpoint, which stores one of them.
        """
        found: State = {SHARDS: self._shards}
        if not factors or shards not in (None, self._shards):
            return found
        meshes = {entry: self._parameters[parameter_of(entry)].device_mesh for entry in factors}
        return found | {FACTORS: {e + shard_of(mesh): factors[e] for e, mesh in meshes.items()}}

    def _own(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the factors of this rank's shards among those of a state."""
        ends = {name: shard_of(one.device_mesh) for name, one in self._parameters.items()}
        parts = {name: name.rpartition(SHARD) for name in named}
        return {
            entry: named[name]
            for name, (entry, word, number) in parts.items()
            if ends.get(parameter_of(entry)) == word + number
        }

    def _spread(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Lays a memory's entries out as their parameters lie: all ranks have all of them,
        also where a rank has no rows.
        """
        mine = {entry: one.to_local().detach() for entry, one in self._owners.items()}
        none = {entry: torch.empty_like(one) for entry, one in mine.items() if not one.numel()}
        return {
            entry: as_rows_of(self._owners[entry], one) if entry in self._owners else one
            for entry, one in (none | {**kept}).items()
        }


def parameter_of(entry: str) -> str:
    """Returns the name of the parameter that a factor is of.

    >>> parameter_of("q/layer.weight")
    'layer.weight'
    """
    return entry.partition("/")[2]


def shard_of(mesh: DeviceMesh) -> str:
    """Returns the words for this rank's shard: its number, and how many there are."""
    return f"{SHARD}{mesh.get_local_rank()} of {mesh.size()}"


def as_rows_of(parameter: DTensor, rows: Tensor) -> DTensor:
    """Makes a tensor like a parameter, of which this rank has these rows."""
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(rows, mesh, placements, shape=shape, stride=stride)


def local(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a memory's entries, as far as this rank has them."""
    mine = {n: one.to_local() if isinstance(one, DTensor) else one for n, one in kept.items()}
    return {name: one for name, one in mine.items() if one.numel()}
