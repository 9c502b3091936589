"""The exchange of a hook for FSDP2. Its memories are sharded as the parameters are."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from atomo.errors import ConfigError
from atomo.hooks.sharding.wrapped_exchange import MEMORIES, WrappedExchange
from atomo.hooks.states.exchange_state import FACTORS, StateDict

__all__ = ["ShardedExchange"]

SHARDS: Final = "shards"
SHARD: Final = ", shard "  # in names of factors


@final
class ShardedExchange(WrappedExchange):
    """Exchange between the replicas of a sharded model."""

    def state_dict(self, ranks: int | None = None, shards: int | None = None) -> StateDict:
        """Returns the state of this rank, for torch.distributed.checkpoint on all ranks.

        The memories of a replica are DTensors over its shards, as the parameters are, so that
        another number of shards can load them. The factors of PowerSGD and ACP-SGD belong to one
        shard each, and have its number in their names: another number of shards starts with new
        factors.

        Args:
            ranks: to load a checkpoint in place, the number of replicas that saved it; None: to
                save.
            shards: the number of shards of a replica in that checkpoint; None: as now.

        Raises:
            ConfigError: `shards` is no whole number from 1.
        """
        if shards is not None and (type(shards) is not int or shards < 1):
            raise ConfigError(f"shards must be a whole number from 1, got {shards!r}")
        state = self._exchange.state_dict(ranks)
        if FACTORS in state:
            state |= self._named(state.pop(FACTORS), shards)
        spread = {number: self._spread(memory) for number, memory in state[MEMORIES].items()}
        return state | {MEMORIES: spread}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state: the memories and the number of the step.

        If the number of replicas has changed, the sum of all memories is unchanged. If the number
        of shards has changed, factors are not loaded, and the next step draws new ones.

        Raises:
            CheckpointError: the state is invalid, or belongs to another model or memory.
        """
        own = {number: local(memory) for number, memory in state.get(MEMORIES, {}).items()}
        factors = self._own(state.get(FACTORS, {}))
        self._exchange.load_state_dict({**state, FACTORS: factors, MEMORIES: own})

    @property
    def _shards(self) -> int:
        """Returns the number of shards of a replica."""
        return max(parameter.device_mesh.size() for parameter in self._parameters.values())

    def _named(self, factors: Mapping[str, Tensor], shards: int | None) -> StateDict:
        """Returns factors by names with the number of the shard; none for another number of shards.

        torch.distributed.checkpoint takes tensors of equal names for replicas, and stores one.
        """
        entries: StateDict = {SHARDS: self._shards}
        if not factors or shards not in (None, self._shards):
            return entries
        meshes = {entry: self._parameters[parameter_of(entry)].device_mesh for entry in factors}
        return entries | {FACTORS: {e + shard_of(mesh): factors[e] for e, mesh in meshes.items()}}

    def _own(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the factors of a state that belong to the shards of this rank."""
        ends = {name: shard_of(p.device_mesh) for name, p in self._parameters.items()}
        parts = {name: name.rpartition(SHARD) for name in named}
        return {
            entry: named[name]
            for name, (entry, word, number) in parts.items()
            if ends.get(parameter_of(entry)) == word + number
        }

    def _spread(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the entries of a memory, sharded as their parameters are.

        All ranks have all entries, also for parameters without rows on a rank.
        """
        rows = {entry: parameter.to_local().detach() for entry, parameter in self._owners.items()}
        empty = {entry: torch.empty_like(r) for entry, r in rows.items() if not r.numel()}
        return {
            entry: as_rows_of(self._owners[entry], value) if entry in self._owners else value
            for entry, value in (empty | {**memory}).items()
        }


def parameter_of(entry: str) -> str:
    """Returns the name of the parameter of a factor.

    >>> parameter_of("q/layer.weight")
    'layer.weight'
    """
    return entry.partition("/")[2]


def shard_of(mesh: DeviceMesh) -> str:
    """Returns the suffix of names for the shard of this rank: its number, and the total."""
    return f"{SHARD}{mesh.get_local_rank()} of {mesh.size()}"


def as_rows_of(parameter: DTensor, rows: Tensor) -> DTensor:
    """Returns a DTensor sharded like a parameter, with these rows on this rank."""
    mesh, placements = parameter.device_mesh, parameter.placements
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(rows, mesh, placements, shape=shape, stride=stride)


def local(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the local part of a memory's entries, without empty ones."""
    own = {n: e.to_local() if isinstance(e, DTensor) else e for n, e in memory.items()}
    return {name: entry for name, entry in own.items() if entry.numel()}
