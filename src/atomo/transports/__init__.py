"""How bytes move. The modules of MPI and torch.distributed are loaded by who joins a job."""

from atomo.transports.base import FOREVER_S, Message, Transport
from atomo.transports.device_lane import DeviceLane
from atomo.transports.local import LocalTransport, network
from atomo.transports.part import Part
from atomo.transports.table import TRANSPORTS, connect, launched

__all__ = [
    "FOREVER_S",
    "TRANSPORTS",
    "DeviceLane",
    "LocalTransport",
    "Message",
    "Part",
    "Transport",
    "connect",
    "launched",
    "network",
]
