"""The parameter server: a master that owns the weights, and workers that send it gradients.

One step, as frames (`atomo.wire.frame`):

    master -> worker   WEIGHTS   the step and the weights, in one message; or what `down` sends
    worker -> master   SCALES    only where a codec has workers agree, once the gradient is whole
    master -> worker   SCALES    the largest that the first `needed` workers ask for
    worker -> master   GRADIENT  one for each bucket, otherwise while the backward pass still runs
    worker -> master   REPORT    the gradient is complete; loss and times

The master closes a step once `needed` workers are complete. A worker that completes later is
discarded for that step; its next message carries the LATE flag, upon which its memory takes the
gradient back, and comes with the weights of the step that is open by then, so that it can still
contribute to that one (the backup workers of Chen et al., "Revisiting Distributed Synchronous SGD",
2016).

Gradients are summed in the order of the ranks, not of arrival: floating-point addition does not
associate, and equal runs are to give equal bits.
"""

from atomo.exchange.parameter_server.client import Client, Command
from atomo.exchange.parameter_server.follower import Follower
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
    "Server",
    "StepLimits",
    "SyncInputs",
    "make_weight_sync",
]
