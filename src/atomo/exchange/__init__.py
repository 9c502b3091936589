"""Averages of the gradients of several workers."""

from atomo.exchange.base import Communicator, Exchanged, Reduction
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.compressor import Compressor
from atomo.exchange.engine.pipeline import Pipeline
from atomo.exchange.parameter_server import (
    Client,
    Command,
    DifferenceCoder,
    Follower,
    GradientCounts,
    Pace,
    Server,
    StepLimits,
    SyncInputs,
    make_weight_sync,
)
from atomo.exchange.report import Report, check_images

__all__ = [
    "Client",
    "Collective",
    "Command",
    "Communicator",
    "Compressor",
    "DifferenceCoder",
    "Direct",
    "Exchanged",
    "Follower",
    "GradientCounts",
    "Pace",
    "Pipeline",
    "Reduction",
    "Report",
    "Server",
    "StepLimits",
    "SyncInputs",
    "check_images",
    "make_weight_sync",
]
