"""What rank 0 of a run tells the others before its first step, or between two: values as JSON."""

import json
from typing import Any

import torch

from atomo.communicators import Direct
from atomo.communicators.hosts import host_names
from atomo.communicators.rooted import deal, take
from atomo.transports import Transport

__all__ = ["hear", "names_of_hosts", "tell"]


def tell(transport: Transport, values: object) -> None:
    """Gives every other rank the same, from rank 0."""
    told = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    deal(transport, [{"told": told}] * transport.size, 0)


def hear(transport: Transport, timeout_s: float) -> dict[str, Any]:
    """What rank 0 told.

    Raises:
        DeadlineExpired: nothing came.
    """
    values: dict[str, Any] = json.loads(take(transport, timeout_s).state["told"].numpy().tobytes())
    return values


def names_of_hosts(transport: Transport, timeout_s: float) -> tuple[str, ...]:
    """The host of each rank, which all find together."""
    names = host_names(Direct(transport, timeout_s))
    return tuple(name.decode(errors="replace") for name in names)
