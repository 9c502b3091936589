"""The contents of the ranks' memories, as other programs save them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.memory import Memory

__all__ = ["add_up", "blank", "claimed", "filled"]


def blank(memory: Memory, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of a memory that holds nothing, with every entry that it may ever have.

    torch.distributed.checkpoint fills what it is given and wants the same entries at both ends.
    """
    vectors = {
        prefix + name: torch.zeros(parameter.shape, device=parameter.device)
        for prefix in memory.vectors
        for name, parameter in parameters.items()
    }
    names = [*memory.scalars, *(one + name for one in memory.numbers for name in parameters)]
    return vectors | {name: torch.zeros((), dtype=torch.float64) for name in names}


def filled(memory: Memory, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of a memory, with zeros where it holds nothing."""
    return blank(memory, parameters) | memory.state_dict()


def claimed(rank: int, size: int, ranks: int) -> list[int]:
    """Lists the memories that a rank of `size` takes over from a job of `ranks`: the sum is kept.

    >>> [claimed(rank, 2, 4) for rank in range(2)], claimed(5, 8, 4)
    ([[0, 2], [1, 3]], [])
    """
    return [*range(rank, ranks, size)]


def add_up(
    states: Sequence[Mapping[str, Any]], memory: Memory, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the sum of several states, of `Memory.statistics` the mean, without what is zero.

    Raises:
        CheckpointError: an entry is missing, or is none of this model's and this memory's.
    """
    total = blank(memory, parameters)
    for state in states:
        check(state, total)
        for name, entry in total.items():
            found = state[name].to(entry.device)
            # What is not a vector, such as a learning rate, is the same on all ranks.
            total[name] = found if name in memory.scalars else entry + found
    for name, entry in total.items() if states else ():
        if memory.statistics and name.startswith(memory.statistics):
            entry /= len(states)
    return {name: entry for name, entry in total.items() if bool(entry.any())}


def check(state: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError where a state is not of this model and this memory."""
    for name in sorted(state.keys() ^ expected.keys()):
        where = "has no" if name in expected else "of another model or memory: it has"
        raise CheckpointError(f"the state {where} {name!r}")
    for name, entry in expected.items():
        found = state[name]
        if not isinstance(found, Tensor) or found.shape != entry.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else found
            raise CheckpointError(
                f"the state has {name!r} as {shape}; this model has {tuple(entry.shape)}"
            )
        if not found.is_floating_point() or not bool(found.isfinite().all()):
            raise CheckpointError(f"the state of {name!r} must be finite numbers")
