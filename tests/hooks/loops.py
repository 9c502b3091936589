"""Loops of threads, one a rank, that train a small network with a wrapped optimizer."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from support.harness import PATIENCE_S, together
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import atomo
from atomo.errors import ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.code_spec import parse_code
from atomo.transports import network

STEPS, BATCH = 20, 12
TEACHER = torch.randn(8, 3, generator=torch.Generator().manual_seed(5))


def model() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    for parameter in layers.parameters():
        nn.init.normal_(parameter, 0, 0.3, generator)
    return layers


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns all images of a step, of which each rank takes its share."""
    images = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 + step))
    return images, (images @ TEACHER).argmax(1)


def flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def total(optimizers: list[Any]) -> Tensor:
    """Returns the sum of the memories of all ranks."""
    sums: dict[str, Tensor] = {}
    for rank, optimizer in enumerate(optimizers):
        for name, kept in optimizer.exchange.state_dict()["memories"][str(rank)].items():
            sums[name] = sums.get(name, torch.zeros(())) + kept
    return torch.cat([sums[name].flatten() for name in sorted(sums)])


Body = Callable[[int, nn.Module, Any], object]


def on_ranks(
    size: int,
    code: str,
    body: Body,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    each: Callable[[int], dict[str, Any]] = lambda rank: {},
    before: Callable[[int, nn.Module], None] = lambda rank, network: None,
    **settings: Any,
) -> tuple[list[nn.Module], list[Any]]:
    """Calls `body(rank, model, optimizer)` in a thread for each rank; returns the models and
    optimizers.
    """
    networks, optimizers = [copy.deepcopy(model()) for _ in range(size)], [None] * size
    transports = network(size)
    with suppress(ConfigError):
        parse_code(code)  # imports it: Python 3.11 may fail to in many threads

    def run(rank: int) -> None:
        ranks = Direct(transports[rank], PATIENCE_S)
        before(rank, networks[rank])
        inner = make(networks[rank])
        optimizers[rank] = atomo.wrap_optimizer(
            inner,
            networks[rank],
            code,
            **{"collective": ranks, "bucket_mb": 0.0004, **settings, **each(rank)},
        )
        body(rank, networks[rank], optimizers[rank])

    together(
        [lambda rank=rank: run(rank) for rank in range(size)],
        lambda: [transport.abort(1) for transport in transports],
    )
    return networks, optimizers


def steps(size: int, count: int = STEPS) -> Body:
    """Returns the body of a training of `count` steps; each rank takes its share of every batch."""

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(count):
            images, labels = batch(step)
            optimizer.zero_grad()
            cross_entropy(network(images[rank::size]), labels[rank::size]).backward()
            optimizer.step()

    return body


def plainly(
    make: Callable[[nn.Module], torch.optim.Optimizer],
    schedule: Callable[[Any], Any] = lambda optimizer: None,
) -> Tensor:
    """Returns the weights after the same steps in one process."""
    network = model()
    optimizer = make(network)
    scheduler = schedule(optimizer)
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(network(images), labels).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return flat(network)
