"""Memory objects of callers; each serves one hook on one rank."""

from typing import Final
from weakref import WeakSet

from atomo.errors import ConfigError
from atomo.memory import Memory

__all__ = ["check_fresh", "check_same", "momentum_of", "take"]

used: Final[WeakSet[Memory]] = WeakSet()


def check_fresh(memory: str | Memory) -> None:
    """Raises ConfigError for a memory that another hook uses, or that is not empty."""
    if isinstance(memory, str):
        return
    if memory in used:
        raise ConfigError(
            f"memory {memory.spec} already serves another hook or rank: create one for each"
        )
    if memory.state_dict():
        raise ConfigError(
            f"memory {memory.spec} is not empty, and a hook begins with an empty memory: load a "
            "state into the hook"
        )


def take(memory: Memory, workers: int) -> Memory:
    """Reserves a memory for one hook.

    Raises:
        ConfigError: the memory is used or not empty, or was made for another number of workers.
    """
    check_fresh(memory)
    memory.set_workers(workers)
    used.add(memory)
    return memory


def momentum_of(memory: object, momentum: float, nesterov: bool) -> tuple[float, bool]:
    """Returns the momentum that a memory object was made with, or else that of the options.

    Raises:
        ConfigError: both have a momentum, and these differ.
    """
    if not isinstance(memory, Memory) or not memory.takes_momentum:
        return momentum, nesterov
    if momentum or nesterov:
        check_same(memory, (momentum, nesterov), "the hook")
    return memory.applied


def check_same(memory: Memory, applied: tuple[float, bool], place: str) -> None:
    """Raises ConfigError if a memory was made with another momentum."""
    if memory.applied != applied:
        own = memory.applied
        raise ConfigError(
            f"memory {memory.spec} was made with momentum={own[0]:g}, nesterov={own[1]}, and "
            f"{place} has momentum={applied[0]}, nesterov={applied[1]}: give both the same"
        )
