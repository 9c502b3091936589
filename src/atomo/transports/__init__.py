"""How bytes move. `atomo.transports.mpi` is imported only by who runs under MPI."""

from atomo.transports.base import Message, Transport
from atomo.transports.local import LocalTransport, network

__all__ = ["LocalTransport", "Message", "Transport", "network"]
