"""Values that rank 0 gives all other ranks before the first step or between two, as JSON."""

import json
from typing import Any

import torch

from atomo.exchange import Direct
from atomo.exchange.collectives.hosts import host_names
from atomo.exchange.states import receive_state, scatter_states
from atomo.transports import Transport

__all__ = ["hear", "names_of_hosts", "tell"]


def tell(transport: Transport, values: object) -> None:
    """Sends the same values from rank 0 to every other rank."""
    told = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    scatter_states(transport, [{"told": told}] * transport.size, 0)


def hear(transport: Transport, timeout_s: float) -> dict[str, Any]:
    """Receives the values of rank 0.

    Raises:
        DeadlineExpired: nothing came.
    """
    values: dict[str, Any] = json.loads(
        receive_state(transport, timeout_s).state["told"].numpy().tobytes()
    )
    return values


def names_of_hosts(transport: Transport, timeout_s: float) -> tuple[str, ...]:
    """Gathers the host name of each rank."""
    names = host_names(Direct(transport, timeout_s))
    return tuple(name.decode(errors="replace") for name in names)
