"""Point-to-point messages over MPI, in typed buffers."""

from atomo.transports.mpi.initialize import connect
from atomo.transports.mpi.transport import MpiTransport

__all__ = ["MpiTransport", "connect"]
