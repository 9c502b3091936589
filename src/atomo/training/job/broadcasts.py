"""Broadcasts of JSON values from rank 0, before the first step or between two steps."""

import json
from typing import Any

import torch

from atomo.exchange import Direct
from atomo.exchange.collectives.hosts import host_names
from atomo.exchange.states import receive_state, scatter_states
from atomo.transports import Transport

__all__ = ["broadcast_json", "names_of_hosts", "receive_json"]


def broadcast_json(transport: Transport, values: object) -> None:
    """Sends the same values from rank 0 to every other rank."""
    text = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    scatter_states(transport, [{"told": text}] * transport.size, 0)


def receive_json(transport: Transport, timeout_s: float) -> dict[str, Any]:
    """Receives the values of rank 0.

    Raises:
        DeadlineExpired: the values did not arrive in time.
    """
    values: dict[str, Any] = json.loads(
        receive_state(transport, timeout_s).state["told"].numpy().tobytes()
    )
    return values


def names_of_hosts(transport: Transport, timeout_s: float) -> tuple[str, ...]:
    """Gathers the host name of each rank."""
    names = host_names(Direct(transport, timeout_s))
    return tuple(name.decode(errors="replace") for name in names)
