"""How the gradients of several workers become one average."""

from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server import Client, Follower, Order, Server, make_down
from atomo.communicators.report import Report

__all__ = ["Client", "Compressor", "Follower", "Order", "Report", "Server", "make_down"]
