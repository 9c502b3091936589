"""How the gradients of several workers become one average.

To add a way to do so without a master: write its module, then list it in REDUCTIONS.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from atomo.communicators.base import Communicator, Exchanged, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.direct import Direct
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
from atomo.communicators.pipeline import Pipeline
from atomo.communicators.report import Report
from atomo.tables import listed

__all__ = [
    "PARAMETER_SERVER",
    "REDUCTIONS",
    "Client",
    "Coder",
    "Collective",
    "Communicator",
    "Compressor",
    "Direct",
    "Exchanged",
    "Follower",
    "Order",
    "Pipeline",
    "Reduction",
    "Report",
    "Server",
    "Source",
    "make_down",
]

PARAMETER_SERVER: Final = "Bcast"  # the one with a master, by the name of its way down

REDUCTIONS: Mapping[str, type[Reduction[Any]]] = MappingProxyType(
    {
        reduction.__name__: reduction
        for reduction in listed(
            __name__,
            "allgather:Allgather",
            "allreduce:Allreduce",
            "powersgd:PowerSGD",
            "acpsgd:ACPSGD",
        )
    }
)
