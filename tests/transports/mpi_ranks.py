"""The ranks of `test_mpi`: `mpirun -n 3 python mpi_ranks.py NAME ...`."""

import atexit
import sys

import numpy as np
import pytest
from scenarios import ENDS, PATIENCE_S, SCENARIOS, play

from atomo.errors import PeerLost
from atomo.transports import Transport, connect
from atomo.transports.mpi import MpiTransport
from atomo.transports.mpi import transport as mpi
from atomo.transports.mpi.library import MPI


def parts(transport: Transport) -> None:
    """Data sent in parts, as between hosts, arrives whole, and nothing overtakes it."""
    assert isinstance(transport, MpiTransport)
    whole, here = mpi.PART_BYTES, transport._host_ranks
    mpi.PART_BYTES, transport._host_ranks = 1000, []  # as if each rank had a host of its own
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
    mpi.PART_BYTES, transport._host_ranks = whole, here


def killed(transport: Transport) -> None:
    """Rank 2 dies, and the other ranks end."""
    if transport.rank == 2:
        transport.exit_rank(1)
    with pytest.raises(PeerLost):
        transport.receive(2, PATIENCE_S, "what never comes")
    transport.ignore_rank(2)


def tell() -> None:
    sys.stdout.write(f"MPI's last call was made: {MPI.Is_finalized()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    SCENARIOS["parts"] = (parts,)
    ENDS["killed"] = (killed,)
    atexit.register(tell)  # runs before the handlers that `connect` registers
    play(sys.argv[1:], connect("mpi"), MPI.COMM_WORLD.Barrier)
