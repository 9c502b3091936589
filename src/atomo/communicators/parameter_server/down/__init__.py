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

from atomo.communicators.parameter_server.down.base import Down, Replica, Taken
from atomo.communicators.parameter_server.down.delta import Delta
from atomo.communicators.parameter_server.down.differences import Coder, add_difference
from atomo.communicators.parameter_server.down.updates import Updates
from atomo.communicators.parameter_server.down.weights import Weights
from atomo.downlink import AUTO, DELTA, UPDATES, WEIGHTS, name_of, repeats_steps
from atomo.fusion import Bucket

__all__ = [
    "Coder",
    "Delta",
    "Down",
    "Replica",
    "Source",
    "Taken",
    "Updates",
    "Weights",
    "add_difference",
    "make_down",
]


@final
@dataclass(frozen=True)
class Source:
    """What the ways down are made of."""

    one_host: bool
    """Whether all ranks are on it."""
    state: Callable[[], Mapping[str, Tensor]]
    """Of the master's optimiser."""
    buckets: Sequence[Bucket]
    """Of the weights, with the codecs of their differences, where such are sent."""
    coder: Coder
    """For these."""
    dtype: torch.dtype = torch.float32
    """What weights travel as, where they alone do."""


def make_auto(source: Source) -> Down:
    repeats = repeats_steps(AUTO, source.one_host)
    return Updates(source.state, chooses=True, relays=True) if repeats else Weights()


WAYS: Final[Mapping[str, Callable[[Source], Down]]] = MappingProxyType(
    {
        AUTO: make_auto,
        WEIGHTS: lambda source: Weights(not source.one_host, source.dtype),
        UPDATES: lambda source: Updates(source.state, relays=not source.one_host),
        DELTA: lambda source: Delta(source.buckets, source.coder, not source.one_host),
    }
)


def make_down(downlink: str, source: Source) -> Down:
    """The master's end of a way down, by its canonical setting."""
    return WAYS[name_of(downlink)](source)
