"""What the ranks of `test_mpi` do: `mpirun -n 3 python mpi_ranks.py NAME ...`."""

import sys

import pytest
from scenarios import ENDS, play

from atomo.errors import TransportError
from atomo.transports import Transport, connect
from atomo.transports.mpi import MPI


def translated(transport: Transport) -> None:
    """What MPI says comes as one of our errors."""
    with pytest.raises(TransportError, match="MPI failed while waiting for a word: MPI_ERR_RANK"):
        transport.receive(3, 1.0, "a word")


if __name__ == "__main__":
    play(sys.argv[1:], connect("mpi"), MPI.COMM_WORLD.Barrier, {**ENDS, "translated": translated})
