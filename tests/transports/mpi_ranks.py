"""What the ranks of `test_mpi` do: `mpirun -n 3 python mpi_ranks.py NAME ...`."""

import sys

import numpy as np
from scenarios import PATIENCE_S, SCENARIOS, play

from atomo.transports import Transport, connect
from atomo.transports.mpi import MpiTransport
from atomo.transports.mpi import transport as mpi
from atomo.transports.mpi.library import MPI


def parts(transport: Transport) -> None:
    """What goes in parts, as between hosts, arrives whole, and nothing overtakes it."""
    assert isinstance(transport, MpiTransport)
    whole, here = mpi.PART, transport._here
    mpi.PART, transport._here = 1000, []  # as if each rank had a host of its own
    sizes = (5000, 1, 999, 1000, 1001, 0, 2000)
    others = [rank for rank in range(3) if rank != transport.rank]
    for size in sizes:
        for other in others:
            transport.send(other, np.arange(size, dtype=np.uint16).view(np.uint8), "numbers")
    for source in reversed(others):
        for size in sizes:
            data = transport.receive(source, PATIENCE_S, "numbers").data
            assert (data.view(np.uint16) == np.arange(size, dtype=np.uint16)).all()
    transport.drain(PATIENCE_S)
    mpi.PART, transport._here = whole, here


if __name__ == "__main__":
    SCENARIOS["parts"] = (parts,)
    play(sys.argv[1:], connect("mpi"), MPI.COMM_WORLD.Barrier)
