"""Memories that callers have made, each for one hook on one rank."""

from typing import Final
from weakref import WeakSet

from atomo.errors import ConfigError
from atomo.memory import Memory

__all__ = ["check_fresh", "check_same", "momentum_of", "take"]

taken: Final[WeakSet[Memory]] = WeakSet()


def check_fresh(memory: str | Memory) -> None:
    """Raises ConfigError for a memory that another hook has, or that holds something."""
    if isinstance(memory, str):
        return
    if memory in taken:
        raise ConfigError(
            f"memory {memory.spec} is another hook's or rank's already: make one for each"
        )
    if memory.state_dict():
        raise ConfigError(
            f"memory {memory.spec} holds something, and a hook begins with an empty one: load a "
            "state into the hook"
        )


def take(memory: Memory, workers: int) -> Memory:
    """Takes a memory, for one hook alone.

    Raises:
        ConfigError: it is no fresh one, or was made for another number of workers.
    """
    check_fresh(memory)
    memory.check_workers(workers)
    taken.add(memory)
    return memory


def momentum_of(memory: object, momentum: float, nesterov: bool) -> tuple[float, bool]:
    """Returns the momentum that a memory was made with, if it takes any, or else what is given.

    Raises:
        ConfigError: they differ.
    """
    given = momentum, nesterov
    if not isinstance(memory, Memory) or not memory.takes_momentum:
        return given
    if momentum or nesterov:
        check_same(memory, given, "the hook")
    return memory.applied


def check_same(memory: Memory, given: tuple[float, bool], place: str) -> None:
    """Raises ConfigError where a memory was made with another momentum."""
    if memory.applied != given:
        own = memory.applied
        raise ConfigError(
            f"memory {memory.spec} was made with momentum={own[0]:g}, nesterov={own[1]}, and "
            f"{place} has momentum={given[0]}, nesterov={given[1]}: give both the same"
        )
