"""The exchange of a hook in place of FSDP2's reduce-scatter."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from atomo.errors import CheckpointError
from atomo.exchange.reductions.reduce_scatter import piece_name
from atomo.hooks.sharding.fsdp_pieces import dimension_of, piece_shapes
from atomo.hooks.sharding.wrapped_exchange import MEMORIES, WrappedExchange
from atomo.hooks.states.exchange_state import StateDict

__all__ = ["ScatteredExchange"]


@final
class ScatteredExchange(WrappedExchange):
    """Exchange between the ranks that share the weights of one model.

    A rank's memory has what the rank did not send of its own gradient, so that it is as large as
    the whole model. States have memories by whole parameters, without the cuts between ranks.
    """

    def state_dict(self, ranks: int | None = None) -> StateDict:
        """Returns the state of this rank, for torch.distributed.checkpoint on all ranks.

        Args:
            ranks: to load a checkpoint in place, the number of ranks that saved it; None: to save.
        """
        return self._joined(self._exchange.state_dict(ranks))

    def gather(self) -> StateDict | None:
        """Gathers the state of all ranks at rank 0; None on other ranks. All ranks must call it."""
        state = self._exchange.gather()
        return None if state is None else self._joined(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state: the memories and the number of the step.

        If the number of ranks has changed, the sum of all memories is unchanged.

        Raises:
            CheckpointError: the state is invalid, or belongs to another model or memory.
        """
        saved = state.get(MEMORIES, {})
        self._exchange.load_state_dict(
            {**state, MEMORIES: {number: self._cut(memory) for number, memory in saved.items()}}
        )

    def _joined(self, state: StateDict) -> StateDict:
        return state | {MEMORIES: {n: self._whole(m) for n, m in state.get(MEMORIES, {}).items()}}

    def _whole(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the entries of a memory, with the pieces of each parameter joined."""
        pieces = {entry: piece_names(entry, p) for entry, p in self._owners.items()}
        taken = {name for names in pieces.values() for name in names}
        rest = {name: value for name, value in memory.items() if name not in taken}
        return rest | {
            entry: torch.cat([memory[name] for name in names], dimension_of(self._owners[entry]))
            for entry, names in pieces.items()
        }

    def _cut(self, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the inverse of `_whole` for the present number of ranks."""
        cut: dict[str, Tensor] = {}
        for entry, value in memory.items():
            parameter = self._owners.get(entry)
            cut |= {entry: value} if parameter is None else pieces_in(entry, value, parameter)
        return cut


def piece_names(entry: str, parameter: DTensor) -> list[str]:
    """Lists the entries of the pieces of a parameter that have rows."""
    shapes = piece_shapes(parameter)
    return [piece_name(entry, rank) for rank, shape in enumerate(shapes) if shape.numel()]


def pieces_in(entry: str, value: Tensor, parameter: DTensor) -> Iterable[tuple[str, Tensor]]:
    """Returns the pieces of an entry by name.

    Raises:
        CheckpointError: the entry has another shape than the parameter.
    """
    if value.shape != parameter.shape:
        raise CheckpointError(
            f"the state has {entry!r} as {tuple(value.shape)}; this model has "
            f"{tuple(parameter.shape)}"
        )
    dim = dimension_of(parameter)
    counts: Sequence[int] = [s[dim] for s in piece_shapes(parameter) if s.numel()]
    return zip(piece_names(entry, parameter), torch.split(value, [*counts], dim), strict=True)
