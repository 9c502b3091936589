"""How the gradients of several workers become one average."""

from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server import Client, Order, Server
from atomo.communicators.report import Report

__all__ = ["Client", "Compressor", "Order", "Report", "Server"]
