"""The last thing that ranks do together, where the death of some does not end the others.

`MPI_Finalize` waits for ever once all ranks of a host are dead (Open MPI 5.0.11), and where rank 0
ends by an abort while others are in it. So nobody enters it before all who live have come to it,
and none of them does where anybody died: they end without, which `mpirun --with-ft ulfm` takes for
an end.
"""

from collections.abc import Iterable

import numpy as np

from atomo.transports.base import FOREVER_S
from atomo.transports.deadline import Deadline
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import tells_of_death
from atomo.wire import Bytes

__all__ = ["all_are_here"]


def all_are_here(world: MPI.Intracomm) -> bool:
    """Waits until all who live have come to their end; whether nobody died, which rank 0 tells all.

    Args:
        world: all ranks, and nothing under way among them.
    """
    word = np.zeros(1, np.uint8)  # of rank 0: whether all are here
    if world.rank:
        hand_over(word, [0], world)
        return bool(take(word, [0], world) and word[0])
    here = take(word, range(1, world.size), world)
    word[0] = len(here) == world.size - 1
    hand_over(word, here, world)
    return bool(word[0])


def hand_over(word: Bytes, to: Iterable[int], world: MPI.Intracomm) -> None:
    """Sends a word to those of some ranks who live."""
    for rank in to:
        try:
            Deadline(FOREVER_S).poll(world.Isend(word, rank).Test)
        except MPI.Exception as error:
            if not tells_of_death(error):
                raise


def take(word: Bytes, sources: Iterable[int], world: MPI.Intracomm) -> list[int]:
    """Waits for the word of each of some ranks, or for its death; who lives, in their order."""

    def has_come(source: int) -> bool:
        try:
            Deadline(FOREVER_S).poll(lambda: world.Iprobe(source))
            world.Recv(word, source)  # at once: it may die after its word, and this would fail
        except MPI.Exception as error:
            if not tells_of_death(error):
                raise
            return False
        return True

    return [source for source in sources if has_come(source)]
