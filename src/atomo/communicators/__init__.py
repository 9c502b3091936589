"""Averages of the gradients of several workers."""

from atomo.communicators.base import Communicator, Exchanged, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.compressor import Compressor
from atomo.communicators.direct import Direct
from atomo.communicators.parameter_server import (
    Client,
    Command,
    DifferenceCoder,
    Follower,
    GradientCounts,
    Server,
    StepLimits,
    SyncInputs,
    make_weight_sync,
)
from atomo.communicators.pipeline import Pipeline
from atomo.communicators.report import Report, check_images

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
    "Pipeline",
    "Reduction",
    "Report",
    "Server",
    "StepLimits",
    "SyncInputs",
    "check_images",
    "make_weight_sync",
]
