"""Gradients of two parameters, averaged over threads of this process, a rank each."""

from collections.abc import Callable
from typing import Any

import torch
from support.harness import PATIENCE_S, together
from torch import Tensor

from atomo.errors import AtomoError
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.code_spec import parse_code
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.transports import network

CODE = "topk(ratio=0.1)"
ENTRIES = {"weight": (64, 200), "bias": (50,)}


def gradients(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=generator).to(dtype) for n, s in ENTRIES.items()}


def of_ranks(count: int) -> list[dict[str, Tensor]]:
    return [gradients(rank) for rank in range(count)]


def averaged(
    given: list[dict[str, Tensor]],
    before: Callable[[Exchange], None] = lambda exchange: None,
    exchanges: list[Any] | None = None,
    **settings: Any,
) -> tuple[list[Exchange], list[BaseException | None]]:
    """Averages gradients in place, one thread a rank, in two chunks; returns the error of each
    rank.
    """
    parse_code(settings.get("code", CODE))  # imports it: Python 3.11 may fail to in many threads
    transports = network(len(given))
    made: list[Any] = [None] * len(given) if exchanges is None else exchanges
    raised: list[BaseException | None] = [None] * len(given)

    def run(rank: int) -> None:
        config = HookConfig(**{"code": CODE} | settings)
        collective = Direct(transports[rank], PATIENCE_S)
        if exchanges is None:
            made[rank] = make_exchange(config, collective, given[rank])
        before(made[rank])
        for number, name in enumerate(ENTRIES):
            chunk = Chunk(number, {name: given[rank][name]})
            made[rank].submit(chunk, 1.0, number + 1 == len(ENTRIES), lambda: None)
        try:
            made[rank].finish()
        except AtomoError as error:
            raised[rank] = error

    ranks = [lambda rank=rank: run(rank) for rank in range(len(given))]
    together(ranks, lambda: transports[0].abort(1))
    return made, raised
