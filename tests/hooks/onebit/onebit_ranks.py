"""Ranks as threads that train one vector with random gradients, and a float64 reference."""

from collections.abc import Callable
from typing import Any

import torch
from support.harness import PATIENCE_S, together
from torch import Tensor, nn

from atomo.exchange.collectives.direct import Direct
from atomo.hooks.onebit.optimizer import OneBitOptimizer
from atomo.transports import network

SHAPES = ((5, 7), (3,), (1,))
Make = Callable[[Any, Any], OneBitOptimizer]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(rank: int, step: int) -> list[Tensor]:
    """Returns the gradients of a rank: noise around a mean that all ranks share."""
    shared = torch.Generator().manual_seed(step)
    own = torch.Generator().manual_seed(1000 * step + rank)
    return [
        torch.randn(shape, generator=shared) + 0.5 * torch.randn(shape, generator=own)
        for shape in SHAPES
    ]


def run(
    ranks: int,
    make: Make,
    steps: range,
    states: list[Any] | None = None,
    start: list[Tensor] | None = None,
    each: Callable[[int, OneBitOptimizer], Any] = lambda rank, optimizer: None,
) -> list[tuple[list[Tensor], OneBitOptimizer, Any]]:
    """Returns the weights, the optimizer and the result of `each` of every rank."""
    transports = network(ranks)

    def body(rank: int) -> tuple[list[Tensor], OneBitOptimizer, Any]:
        own = weights()
        with torch.no_grad():
            for parameter, value in zip(own, start or (), strict=bool(start)):
                parameter.copy_(value)
        optimizer = make(own, Direct(transports[rank], PATIENCE_S))
        if states is not None:
            optimizer.load_state_dict(states[rank])
        for step in steps:
            for parameter, gradient in zip(own, gradients(rank, step), strict=True):
                parameter.grad = gradient
            optimizer.step()
        return [p.detach().clone() for p in own], optimizer, each(rank, optimizer)

    results: list[Any] = [None] * ranks

    def keep(rank: int) -> None:
        results[rank] = body(rank)

    together(
        [lambda rank=rank: keep(rank) for rank in range(ranks)],
        lambda: [transport.abort(1) for transport in transports],
    )
    return results
