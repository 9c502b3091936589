"""How the gradients of several workers become one average."""

from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server import (
    Client,
    Coder,
    Follower,
    Order,
    Server,
    Source,
    make_down,
)
from atomo.communicators.report import Report

__all__ = [
    "Client",
    "Coder",
    "Compressor",
    "Follower",
    "Order",
    "Report",
    "Server",
    "Source",
    "make_down",
]
