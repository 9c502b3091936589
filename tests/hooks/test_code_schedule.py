"""Codecs that follow one another in hooks, by steps."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, on_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import atomo
from atomo.errors import ConfigError
from atomo.hooks.options.hook_config import HookConfig

FIRST, LATER = "topk(ratio=0.5)", "3: topk(ratio=0.2); 5: sgd"


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.1)


def go_on(rank: int, network: nn.Module, optimizer: Any, first: int, last: int) -> list[int]:
    """Returns the bytes that a rank sends at each step."""
    sent = []
    for step in range(first, last):
        images, labels = batch(step)
        before = optimizer.exchange.stats.sent_bytes
        optimizer.zero_grad()
        cross_entropy(network(images[rank::2]), labels[rank::2]).backward()
        optimizer.step()
        sent.append(optimizer.exchange.stats.sent_bytes - before)
    return sent


def test_codecs_change_at_their_steps_and_a_resume_goes_on_in_them():
    sent: dict[int, list[int]] = {}
    saved: dict[int, Any] = {}

    def whole(rank: int, network: nn.Module, optimizer: Any) -> None:
        sent[rank] = go_on(rank, network, optimizer, 0, 4)
        saved[rank] = deepcopy([network.state_dict(), optimizer.exchange.state_dict()])
        sent[rank] += go_on(rank, network, optimizer, 4, 7)

    def rest(rank: int, network: nn.Module, optimizer: Any) -> None:
        network.load_state_dict(saved[rank][0])
        optimizer.exchange.load_state_dict(saved[rank][1])
        assert go_on(rank, network, optimizer, 4, 7) == sent[rank][4:]

    networks, made = on_ranks(2, FIRST, whole, sgd, code_schedule=LATER, dense_below=1)
    again, _ = on_ranks(2, FIRST, rest, sgd, code_schedule=LATER, dense_below=1)
    assert max(sent[0][3:5]) < min(sent[0][:3]) < min(sent[0][5:])
    assert flat(again[0]).equal(flat(networks[0]))
    assert "from step 3 topk(ratio=0.2); from step 5 sgd" in repr(made[0].exchange)


@pytest.mark.parametrize(
    ("code", "schedule", "words"),
    [
        ("topk", "0: sgd", "begins at step 0, so that topk never encodes"),
        ("topk", "1.5: sgd", "1.5 is no whole number of steps"),
        ("topk", "sgd", "code_schedule: cannot read 'sgd'; write 'STEP: CODEC'"),
        ("topk", "5: sgd; 3: topk", "step 3 comes after step 5; name steps in increasing order"),
        ("powersgd", "5: sgd", "goes with codecs, not with PowerSGD"),
        ("topk", "5: svd", "diverges: .*; --memory auto took residual, which topk needs"),
    ],
)
def test_schedules_that_cannot_be_are_refused(code, schedule, words):
    with pytest.raises(ConfigError, match=words):
        HookConfig(code, schedule=schedule).check()
    with pytest.raises(ConfigError, match=words):
        atomo.lightning_callback(code, code_schedule=schedule)


def test_the_memory_is_one_that_all_codecs_bear():
    assert HookConfig("fp16", schedule="5: topk").memory_spec == "residual"
    assert HookConfig("sgd", momentum=0.9, schedule="5: topk").memory_spec == "dgc"
    assert HookConfig("sgd", schedule="5: svd").memory_spec == "none"
