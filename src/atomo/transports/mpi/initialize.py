"""The start and the end of a process as a rank of an MPI job."""

import atexit
import ctypes
import signal
from typing import Final

import numpy as np

from atomo.transports.exit_alarm import exit_after
from atomo.transports.mpi.finalize import all_alive_arrived
from atomo.transports.mpi.library import MPI
from atomo.transports.mpi.transport import MpiTransport
from atomo.transports.processes import ProcessId, own_process

__all__ = ["connect"]

FAULT_TOLERANCE: Final = 12  # MPI_FT, unnamed in mpi4py: the attribute points to an int
FINALIZE_S: Final = 30  # for all ranks, of which one may be stopped meanwhile


def connect() -> "MpiTransport":
    """Starts MPI and joins the job that this process was launched in."""
    begins = not MPI.Is_initialized()
    if begins:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    fault_tolerant = is_fault_tolerant()
    if begins:
        # A communicator of its own: a rank that is still running must not receive its messages.
        atexit.register(finalize, MPI.COMM_WORLD.Dup() if fault_tolerant else None)
    return MpiTransport(MPI.COMM_WORLD, host_ranks(), processes() if fault_tolerant else None)


def finalize(world: MPI.Intracomm | None) -> None:
    """Finalizes MPI on all ranks together, unless the script has done so.

    Args:
        world: all ranks of a fault-tolerant job, in which the wait for a stopped rank must end too;
            None otherwise.
    """
    if MPI.Is_finalized():
        return
    # The work is done: an exit without finalization would only make the other ranks wait.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if world is None:
        MPI.Finalize()
        return
    with exit_after(FINALIZE_S):
        if all_alive_arrived(world):
            MPI.Finalize()


def is_fault_tolerant() -> bool:
    """Returns True if Open MPI's fault tolerance is built in and mpirun enabled it.

    mpi4py has stand-ins for functions that a library lacks, and these never report a death: a query
    for the failed ranks would prove nothing.
    """
    name, version = MPI.get_vendor()
    if name != "Open MPI" or version < (5,):
        return False
    address = MPI.COMM_WORLD.Get_attr(FAULT_TOLERANCE)
    return isinstance(address, int) and ctypes.c_int.from_address(address).value == 1


def host_ranks() -> list[int]:
    """Returns the ranks on this host, in order."""
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = here.group.Translate_ranks(None, MPI.COMM_WORLD.group)
    here.Free()
    return list(ranks)


def processes() -> list[ProcessId]:
    """Returns the process of each rank, as numbered on its own host."""
    own, world = own_process(), MPI.COMM_WORLD
    rows = np.empty((world.size, 2), np.int64)
    world.Allgather(np.array([own.pid, own.started], np.int64), rows)
    return [ProcessId(*row) for row in rows.tolist()]
