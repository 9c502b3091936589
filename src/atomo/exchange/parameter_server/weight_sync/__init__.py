"""Weight syncs: a module for each value of `--down`. A new module is listed in MAKERS.

`weights` sends all weights, `updates` sends the counted gradient frames, and `auto` chooses the one
with fewer bytes; the bits of the workers' weights are the same. `delta` sends coded differences, so
that the workers' weights differ from the master's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

import torch
from torch import Tensor

from atomo.exchange.parameter_server.weight_sync.base import CountedStep, Replica, WeightSync
from atomo.exchange.parameter_server.weight_sync.delta import DeltaSync
from atomo.exchange.parameter_server.weight_sync.differences import (
    DifferenceCoder,
    add_difference,
)
from atomo.exchange.parameter_server.weight_sync.updates import UpdateSync
from atomo.exchange.parameter_server.weight_sync.weights import FullSync
from atomo.fusion import Bucket
from atomo.options.weight_sync import (
    AUTO_DOWNLINK,
    DELTA,
    UPDATES,
    WEIGHTS,
    downlink_name,
    repeats_steps,
)

__all__ = [
    "CountedStep",
    "DeltaSync",
    "DifferenceCoder",
    "FullSync",
    "Replica",
    "SyncInputs",
    "UpdateSync",
    "WeightSync",
    "add_difference",
    "make_weight_sync",
]


@final
@dataclass(frozen=True)
class SyncInputs:
    """Inputs of the weight syncs."""

    one_host: bool
    """True if all ranks are on one host."""
    state: Callable[[], Mapping[str, Tensor]]
    """Returns the state of the master's optimizer."""
    buckets: Sequence[Bucket]
    """Buckets of the weights, with the codecs of their differences, for `delta`."""
    coder: DifferenceCoder
    """Encoder of differences, for `delta`."""
    dtype: torch.dtype = torch.float32
    """Type of whole weights in frames, for `weights`."""


def make_auto(source: SyncInputs) -> WeightSync:
    repeats = repeats_steps(AUTO_DOWNLINK, source.one_host)
    return UpdateSync(source.state, chooses=True, relays=True) if repeats else FullSync()


MAKERS: Final[Mapping[str, Callable[[SyncInputs], WeightSync]]] = MappingProxyType(
    {
        AUTO_DOWNLINK: make_auto,
        WEIGHTS: lambda source: FullSync(not source.one_host, source.dtype),
        UPDATES: lambda source: UpdateSync(source.state, relays=not source.one_host),
        DELTA: lambda source: DeltaSync(source.buckets, source.coder, not source.one_host),
    }
)


def make_weight_sync(downlink: str, source: SyncInputs) -> WeightSync:
    """Returns the master's weight sync for a canonical `--down`."""
    return MAKERS[downlink_name(downlink)](source)
