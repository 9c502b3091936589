"""MPI, point to point, in typed buffers."""

from atomo.transports.mpi.joining import connect
from atomo.transports.mpi.transport import MpiTransport

__all__ = ["MpiTransport", "connect"]
