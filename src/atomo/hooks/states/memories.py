"""The contents of the memories of ranks, in the form that other programs save."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.memory import Memory

__all__ = ["add_up", "blank", "claimed", "filled"]


def blank(memory: Memory, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of an empty memory, with zeros for every entry that it can have.

    torch.distributed.checkpoint loads in place, and needs the same entries in the file and here.
    """
    vectors = {
        prefix + name: torch.zeros(parameter.shape, device=parameter.device)
        for prefix in memory.vectors
        for name, parameter in parameters.items()
    }
    names = [*memory.scalars, *(prefix + name for prefix in memory.numbers for name in parameters)]
    return vectors | {name: torch.zeros((), dtype=torch.float64) for name in names}


def filled(memory: Memory, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of a memory, with zeros for the entries that it does not have."""
    return blank(memory, parameters) | memory.state_dict()


def claimed(rank: int, size: int, ranks: int) -> list[int]:
    """Lists the memories of a job of `ranks` that a rank of `size` loads; the sum is unchanged.

    >>> [claimed(rank, 2, 4) for rank in range(2)], claimed(5, 8, 4)
    ([[0, 2], [1, 3]], [])
    """
    return [*range(rank, ranks, size)]


def add_up(
    states: Sequence[Mapping[str, Any]], memory: Memory, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the sum of states, or the mean for `Memory.statistics`, without entries of zeros.

    Raises:
        CheckpointError: an entry is missing, or belongs to another model or memory.
    """
    total = blank(memory, parameters)
    for state in states:
        check(state, total)
        for name, entry in total.items():
            addend = state[name].to(entry.device)
            # A scalar, such as a learning rate, is the same on all ranks.
            total[name] = addend if name in memory.scalars else entry + addend
    for name, entry in total.items() if states else ():
        if memory.statistics and name.startswith(memory.statistics):
            entry /= len(states)
    return {name: entry for name, entry in total.items() if bool(entry.any())}


def check(state: Mapping[str, Any], expected: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError if a state belongs to another model or memory."""
    for name in sorted(state.keys() ^ expected.keys()):
        fault = "has no" if name in expected else "is of another model or memory: it has"
        raise CheckpointError(f"the state {fault} {name!r}")
    for name, entry in expected.items():
        saved = state[name]
        if not isinstance(saved, Tensor) or saved.shape != entry.shape:
            shape = tuple(saved.shape) if isinstance(saved, Tensor) else saved
            raise CheckpointError(
                f"the state has {name!r} as {shape}; this model has {tuple(entry.shape)}"
            )
        if not saved.is_floating_point() or not bool(saved.isfinite().all()):
            raise CheckpointError(f"the state of {name!r} must be finite numbers")
