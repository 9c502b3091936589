"""The parameter server: a master that owns the weights, and workers that send it gradients.

One step, as frames (`atomo.wire.frame`):

    master -> worker   WEIGHTS   the step and its weights in one message, or frames of `--down`
    worker -> master   SCALES    only if a codec needs agreed scales, once the gradient is whole
    master -> worker   SCALES    the largest scales that the first `needed` workers propose
    worker -> master   GRADIENT  one for each bucket; without scales, during the backward pass
    worker -> master   REPORT    the gradient is complete; loss and times

The master closes a step once the gradients of `needed` workers are complete. A gradient that is
complete later does not count in that step. The master's next message to its worker carries the LATE
flag and the weights of the step that is open then: the worker's memory takes the gradient back, and
the worker contributes to the open step. These are the backup workers of Chen et al., "Revisiting
Distributed Synchronous SGD", 2016.

Gradients are summed in rank order and not in the order of arrival: floating-point addition is not
associative, and equal runs must give equal bits.
"""

from atomo.exchange.parameter_server.client import Client, Command
from atomo.exchange.parameter_server.follower import Follower
from atomo.exchange.parameter_server.frames.messages import Pace
from atomo.exchange.parameter_server.gradient_counts import GradientCounts
from atomo.exchange.parameter_server.server import Server
from atomo.exchange.parameter_server.step_deadline import StepLimits
from atomo.exchange.parameter_server.weight_sync import (
    DifferenceCoder,
    SyncInputs,
    make_weight_sync,
)

__all__ = [
    "Client",
    "Command",
    "DifferenceCoder",
    "Follower",
    "GradientCounts",
    "Pace",
    "Server",
    "StepLimits",
    "SyncInputs",
    "make_weight_sync",
]
