"""Replicas that take local steps, each in a thread."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from hooks.loops import batch, model
from support.harness import PATIENCE_S, together
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import atomo
from atomo.errors import ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.code_spec import parse_code
from atomo.transports import network

Body = Callable[[int, nn.Module, Any], object]


def plain_sgd(network: nn.Module) -> Optimizer:
    return SGD(network.parameters(), lr=0.1)


def adamw(network: nn.Module) -> Optimizer:
    return AdamW(network.parameters(), lr=0.01)


def replicas(
    size: int,
    code: str | None,
    body: Body,
    make: Callable[[nn.Module], Optimizer] = plain_sgd,
    build: Callable[[], nn.Module] = model,
    each: Callable[[int], dict[str, Any]] = lambda rank: {},
    **settings: Any,
) -> tuple[list[nn.Module], list[Any]]:
    """Calls `body(rank, model, optimizer)` in a thread for each rank; returns the models and
    optimizers.
    """
    networks = [copy.deepcopy(build()) for _ in range(size)]
    optimizers: list[Any] = [None] * size
    transports = network(size)
    with suppress(ConfigError):
        parse_code(code)  # imports it: Python 3.11 may fail to in many threads

    def run(rank: int) -> None:
        ranks = Direct(transports[rank], PATIENCE_S)
        given = {"collective": ranks, "bucket_mb": 0.0004, **settings, **each(rank)}
        inner = make(networks[rank])
        optimizers[rank] = atomo.local_steps(networks[rank], inner, code, **given)
        body(rank, networks[rank], optimizers[rank])

    together(
        [lambda rank=rank: run(rank) for rank in range(size)],
        lambda: [transport.abort(1) for transport in transports],
    )
    return networks, optimizers


def one_step(rank: int, size: int, step: int, network: nn.Module, optimizer: Any) -> None:
    """Takes a step with this rank's share of a batch."""
    images, labels = batch(step)
    optimizer.zero_grad()
    cross_entropy(network(images[rank::size]), labels[rank::size]).backward()
    optimizer.step()


def steps(size: int, count: int, begin: int = 0) -> Body:
    """Returns the body of a training of the steps from `begin` to `count`."""

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(begin, count):
            one_step(rank, size, step, network, optimizer)

    return body


def anchor_of(network: nn.Module, optimizer: Any) -> Tensor:
    """Returns the flat anchor."""
    with optimizer.anchor():
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
