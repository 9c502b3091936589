"""How the gradients of several workers become one average: what ranks of a job need for it."""

from atomo.communicators.base import Communicator, Exchanged, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.direct import Direct
from atomo.communicators.exchange import Compressor
from atomo.communicators.parameter_server import (
    Balance,
    Client,
    Coder,
    Follower,
    Limits,
    Order,
    Server,
    Source,
    make_down,
)
from atomo.communicators.pipeline import Pipeline
from atomo.communicators.report import Report

__all__ = [
    "Balance",
    "Client",
    "Coder",
    "Collective",
    "Communicator",
    "Compressor",
    "Direct",
    "Exchanged",
    "Follower",
    "Limits",
    "Order",
    "Pipeline",
    "Reduction",
    "Report",
    "Server",
    "Source",
    "make_down",
]
