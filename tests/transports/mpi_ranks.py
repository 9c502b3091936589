"""What the ranks of `test_mpi` do: `mpirun -n 3 python mpi_ranks.py NAME ...`."""

import sys

from scenarios import play

from atomo.transports import connect
from atomo.transports.mpi import MPI

if __name__ == "__main__":
    play(sys.argv[1:], connect("mpi"), MPI.COMM_WORLD.Barrier)
