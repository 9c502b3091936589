"""The finalization of MPI in a fault-tolerant job.

`MPI_Finalize` waits for ever once all ranks of a host are dead (Open MPI 5.0.11), and also where
rank 0 aborts while other ranks are inside it. No rank therefore enters it before all living ranks
have arrived, and no rank enters it if any rank died: the ranks then exit without it, which `mpirun
--with-ft ulfm` accepts as an end.
"""

from collections.abc import Iterable

import numpy as np

from atomo.transports.base import FOREVER_S
from atomo.transports.deadline import Deadline
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.messages import is_peer_failure
from atomo.wire import Bytes

__all__ = ["all_alive_arrived"]


def all_alive_arrived(world: MPI.Intracomm) -> bool:
    """Waits until all living ranks have arrived; returns True if no rank died. Rank 0 decides for
    all ranks, since separate decisions could differ.

    Args:
        world: all ranks, with no message under way among them.
    """
    word = np.zeros(1, np.uint8)  # rank 0 sends 1 if all ranks have arrived
    if world.rank:
        send_word(word, [0], world)
        return bool(take(word, [0], world) and word[0])
    here = take(word, range(1, world.size), world)
    word[0] = len(here) == world.size - 1
    send_word(word, here, world)
    return bool(word[0])


def send_word(word: Bytes, to: Iterable[int], world: MPI.Intracomm) -> None:
    """Sends one byte to those of some ranks that live."""
    for rank in to:
        try:
            Deadline(FOREVER_S).poll(world.Isend(word, rank).Test)
        except MPI.Exception as error:
            if not is_peer_failure(error):
                raise


def take(word: Bytes, sources: Iterable[int], world: MPI.Intracomm) -> list[int]:
    """Waits for the byte of each of some ranks, or for its death; returns the living ranks, in
    order.
    """

    def has_come(source: int) -> bool:
        try:
            Deadline(FOREVER_S).poll(lambda: world.Iprobe(source))
            world.Recv(word, source)  # without delay: after the sender's death this would fail
        except MPI.Exception as error:
            if not is_peer_failure(error):
                raise
            return False
        return True

    return [source for source in sources if has_come(source)]
