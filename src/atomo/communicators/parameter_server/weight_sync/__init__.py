"""How the weights come down: a file for each way. To add one: write it, and list it in WAYS.

`weights` sends them whole, `updates` the frames that counted, and `auto` whichever is fewer bytes;
the workers' weights are the same bits. `delta` sends coded differences, and workers lag behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

import torch
from torch import Tensor

from atomo.communicators.parameter_server.weight_sync.base import CountedStep, Replica, WeightSync
from atomo.communicators.parameter_server.weight_sync.delta import DeltaSync
from atomo.communicators.parameter_server.weight_sync.differences import (
    DifferenceCoder,
    add_difference,
)
from atomo.communicators.parameter_server.weight_sync.updates import UpdateSync
from atomo.communicators.parameter_server.weight_sync.weights import FullSync
from atomo.downlink import AUTO_DOWNLINK, DELTA, UPDATES, WEIGHTS, downlink_name, repeats_steps
from atomo.fusion import Bucket

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
    """What the ways down are made of."""

    one_host: bool
    """Whether all ranks are on it."""
    state: Callable[[], Mapping[str, Tensor]]
    """Of the master's optimiser."""
    buckets: Sequence[Bucket]
    """Of the weights, with the codecs of their differences, where such are sent."""
    coder: DifferenceCoder
    """For these."""
    dtype: torch.dtype = torch.float32
    """What weights travel as, where they alone do."""


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
    """The master's end of a way down, by its canonical setting."""
    return MAKERS[downlink_name(downlink)](source)
