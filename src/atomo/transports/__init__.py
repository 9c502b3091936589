"""Transports move bytes between ranks. `connect` loads the module of MPI or of torch.distributed
only when a process joins a job.
"""

from atomo.transports.base import FOREVER_S, Message, Transport
from atomo.transports.device_channel import DeviceChannel
from atomo.transports.local import LocalTransport, network
from atomo.transports.subgroup import Subgroup
from atomo.transports.table import TRANSPORTS, connect, launched_size

__all__ = [
    "FOREVER_S",
    "TRANSPORTS",
    "DeviceChannel",
    "LocalTransport",
    "Message",
    "Subgroup",
    "Transport",
    "connect",
    "launched_size",
    "network",
]
