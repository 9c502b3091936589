"""How a process becomes a rank of an MPI job, and ceases to be one."""

import atexit
import ctypes
import signal
from typing import Final

import numpy as np

from atomo.transports.farewell import at_most
from atomo.transports.mpi.goodbye import all_are_here
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.transport import MpiTransport
from atomo.transports.processes import Identity, own_identity

__all__ = ["connect"]

FAULT_TOLERANCE: Final = 12  # MPI_FT, an attribute that mpi4py has no name for: where an int is
FAREWELL_S: Final = 30  # of all ranks, where one may be stopped in the middle of it


def connect() -> "MpiTransport":
    """Starts MPI and joins the job that this process was launched in."""
    begins = not MPI.Is_initialized()
    if begins:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    survives = outlives_deaths()
    if begins:
        # Its own communicator: a run that is not over must not find what is said in it.
        atexit.register(finalize, MPI.COMM_WORLD.Dup() if survives else None)
    return MpiTransport(MPI.COMM_WORLD, ranks_here(), processes() if survives else None)


def finalize(world: MPI.Intracomm | None) -> None:
    """Ends MPI, all ranks together, unless the script has done so.

    Args:
        world: of all ranks, where deaths do not end the job, nor then a wait for who was stopped.
    """
    if MPI.Is_finalized():
        return
    # All is done: who left without a goodbye now would only have the others wait for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if world is None:
        MPI.Finalize()
        return
    with at_most(FAREWELL_S):
        if all_are_here(world):
            MPI.Finalize()


def outlives_deaths() -> bool:
    """Whether Open MPI's fault tolerance is there, and mpirun was told to use it.

    mpi4py has stand-ins for what a library lacks, which never tell of a death: so asking for the
    failed ranks proves nothing.
    """
    name, version = MPI.get_vendor()
    if name != "Open MPI" or version < (5,):
        return False
    place = MPI.COMM_WORLD.Get_attr(FAULT_TOLERANCE)
    return isinstance(place, int) and ctypes.c_int.from_address(place).value == 1


def ranks_here() -> list[int]:
    """The ranks on this host, in order."""
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = here.group.Translate_ranks(None, MPI.COMM_WORLD.group)
    here.Free()
    return list(ranks)


def processes() -> list[Identity]:
    """The process of each rank, on its own host."""
    own, world = own_identity(), MPI.COMM_WORLD
    found = np.empty((world.size, 2), np.int64)
    world.Allgather(np.array([own.pid, own.started], np.int64), found)
    return [Identity(*one) for one in found.tolist()]
