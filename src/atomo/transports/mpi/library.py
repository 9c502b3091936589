"""The only import of mpi4py; it does not start MPI."""

import mpi4py

mpi4py.rc.initialize = False  # `connect` does
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI"]
