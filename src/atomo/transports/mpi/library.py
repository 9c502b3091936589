"""MPI as mpi4py has it, which this module alone imports, and which starts nothing by that."""

import mpi4py

mpi4py.rc.initialize = False  # `connect` does
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI"]
