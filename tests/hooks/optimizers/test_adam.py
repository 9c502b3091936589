"""Wrapped Adam and AdamW whose update the memory makes."""

from typing import Any

import pytest
import torch
from hooks.loops import flat, model, on_ranks, plainly, steps
from hooks.ranks import alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW

import atomo
from atomo.errors import ConfigError

SETTINGS: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def adam(network: nn.Module) -> torch.optim.Optimizer:
    return Adam(network.parameters(), **SETTINGS)


def adamw(network: nn.Module) -> torch.optim.Optimizer:
    return AdamW(network.parameters(), **SETTINGS)


@pytest.mark.slow(cases=("adam]",))
@pytest.mark.parametrize("make", [adam, adamw])
def test_where_nothing_is_late_it_is_the_optimizer_with_its_own_decay(make):
    [network], [wrapped] = on_ranks(1, "topk(ratio=1.0)", steps(1), make)
    torch.testing.assert_close(flat(network), plainly(make), rtol=1e-4, atol=1e-5)
    state = wrapped.exchange.state_dict()
    assert state["memory"] == "adam"
    assert float(state["memories"]["0"]["steps/0.weight"]) == 20
    assert not wrapped.optimizer.state
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(
    ("code", "memory", "meant"),
    [("efsignsgd", "auto", "adam"), ("svd(selection=top)", "auto", "residual"),
     ("topk", "residual", "residual"), ("svd(selection=top)", "adam", "adam")],
)  # fmt: skip
def test_the_default_is_what_was_measured(code, memory, meant):
    networks, [wrapped, _] = on_ranks(2, code, steps(2, 2), adamw, memory=memory)
    assert wrapped.exchange.state_dict()["memory"] == meant
    assert flat(networks[0]).equal(flat(networks[1]))


@pytest.mark.parametrize(
    ("make", "memory", "message"),
    [
        (lambda net: SGD(net.parameters(), lr=0.1), "adam", "the optimizer is SGD: give torch"),
        (lambda net: Adam(net.parameters(), amsgrad=True), "adam", "has amsgrad=True"),
        (adam, "adam(beta1=0.5)", r"memory adam\(beta1=0.5\) was given, and the optimizer has"),
    ],
)
def test_a_memory_that_cannot_make_the_update_is_refused(make, memory, message):
    with pytest.raises(ConfigError, match=message):
        on_ranks(1, "topk", steps(1, 1), make, memory=memory)


def test_betas_that_change_later_are_refused():
    def change(rank: int, network: nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0]["betas"] = (0.5, 0.95)
        steps(1, 1)(rank, network, optimizer)

    with pytest.raises(ConfigError, match=r"applies betas \(0.8, 0.95\).* has betas \(0.5, 0.95\)"):
        on_ranks(1, "topk", change, adamw)


def test_adam_with_drawn_atoms_is_told_what_is_better():
    words = r"svd\(rank=2\) draws the atoms .*, and Adam .*; give 'svd\(selection=top\)'"
    with alone():
        network = model()
        with pytest.warns(UserWarning, match=words):
            atomo.wrap_optimizer(adamw(network), network, "svd(rank=2)")
        ddp = DistributedDataParallel(model())
        with pytest.warns(UserWarning, match=words):
            atomo.ddp_hook(ddp, "svd(rank=2)", optimizer=adamw(ddp))


def test_a_hook_leaves_the_step_to_adam_and_says_what_is_better():
    with alone():
        ddp = DistributedDataParallel(model())
        with pytest.warns(UserWarning, match="loses more than memory 'adam', the default"):
            state, _ = atomo.ddp_hook(ddp, "topk", optimizer=adamw(ddp))
        assert state.state_dict()["memory"] == "residual"
        with pytest.raises(ConfigError, match=r"use atomo.wrap_optimizer with torch.optim.AdamW"):
            atomo.ddp_hook(DistributedDataParallel(model()), "topk", memory="adam")
