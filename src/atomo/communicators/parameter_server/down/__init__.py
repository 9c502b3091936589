"""How the weights come down: a file for each way. To add one: write it, and list it in WAYS.

`weights` sends them whole, `updates` the frames that counted, and `auto` whichever is fewer bytes;
the workers' weights are the same bits.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from torch import Tensor

from atomo.communicators.parameter_server.down.base import Down, Replica, Taken
from atomo.communicators.parameter_server.down.updates import Updates
from atomo.communicators.parameter_server.down.weights import Weights
from atomo.downlink import AUTO, UPDATES, WEIGHTS
from atomo.transports import Transport

__all__ = ["Down", "Replica", "Taken", "Updates", "Weights", "make_down"]

State = Callable[[], Mapping[str, Tensor]]


def make_auto(transport: Transport, state: State) -> Down:
    """Bytes cost nothing within one host, while to decode W frames in each of W processes does."""
    return Weights() if transport.local_size == transport.size else Updates(state, chooses=True)


WAYS: Final[Mapping[str, Callable[[Transport, State], Down]]] = MappingProxyType(
    {
        AUTO: make_auto,
        WEIGHTS: lambda transport, state: Weights(),
        UPDATES: lambda transport, state: Updates(state),
    }
)


def make_down(downlink: str, transport: Transport, state: State) -> Down:
    """The master's end of a way down.

    Args:
        downlink: its name, in canonical form.
        transport: what connects the ranks.
        state: of the master's optimiser.
    """
    return WAYS[downlink](transport, state)
