"""Outer steps, fragments and the default outer optimizer."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.optim import SGD

from atomo.exchange.outer.anchor import Anchor
from atomo.options.fragments import split_fragments
from atomo.options.outer import OuterSGD, automatic_outer, parse_outer
from atomo.options.rounds import Rounds


@pytest.mark.parametrize("outer", [
    OuterSGD(0.7, 0.9, nesterov=True), OuterSGD(0.5, 0.8, nesterov=False),
    OuterSGD(1.0, 0.0, nesterov=False),
])  # fmt: skip
def test_an_outer_step_is_torchs_sgd_bit_for_bit(outer):
    draws = torch.Generator().manual_seed(1)
    start = torch.randn(50, generator=draws)
    weights = {"w": start.clone()}
    anchor = Anchor(weights, {}, outer)
    reference = nn.Parameter(start.clone())
    torchs = SGD([reference], lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)
    for _ in range(5):
        mean = torch.randn(50, generator=draws)
        reference.grad = mean.clone()
        torchs.step()
        anchor.step({"w": mean}, 0.0)
        assert weights["w"].equal(reference.detach())


def test_a_specification_is_read_back_from_its_text():
    outer = OuterSGD(0.3, 0.6, nesterov=True)
    assert parse_outer(str(outer)) == outer == parse_outer(outer)


def test_the_anchor_is_in_the_model_for_a_block_alone_also_after_an_error():
    weights, buffers = {"w": torch.zeros(3)}, {"b": torch.ones(2)}
    anchor = Anchor(weights, buffers, OuterSGD())
    weights["w"].add_(5)
    buffers["b"].add_(5)
    with suppress(RuntimeError), anchor.in_model():
        assert weights["w"].equal(torch.zeros(3))
        assert buffers["b"].equal(torch.ones(2))
        raise RuntimeError("in the block")
    assert weights["w"].equal(torch.full((3,), 5.0))
    assert buffers["b"].equal(torch.full((2,), 6.0))


@pytest.mark.parametrize("count", range(1, 8))
def test_fragments_have_all_parameters_in_their_order(count):
    sizes = {f"p{number}": size for number, size in enumerate([100, 1, 1, 300, 5, 5, 1])}
    fragments = split_fragments(sizes, count)
    assert len(fragments) == count
    assert all(fragments)
    assert [name for fragment in fragments for name in fragment] == [*sizes]


def test_each_fragment_is_exchanged_once_a_round():
    rounds = Rounds(12, 3, overlap=3)
    begun = [rounds.begins(step) for step in range(1, 25)]
    ended = [rounds.ends(step) for step in range(1, 25)]
    assert [f for f in begun if f is not None] == [0, 1, 2, 0, 1, 2]
    assert ended == [None] * 3 + begun[:-3]


@pytest.mark.parametrize(
    ("every", "workers", "feeds_back", "outer"),
    [(63, 8, False, (1.0, 0.0)), (64, 1, False, (0.4, 0.9)), (64, 8, False, (0.8, 0.9)),
     (99, 5, False, (0.6, 0.9)), (100, 2, False, (0.7, 0.9)), (500, 2, True, (1.0, 0.0))],
)  # fmt: skip
def test_the_default_has_momentum_in_long_rounds_without_error_feedback(
    every, workers, feeds_back, outer
):
    chosen = automatic_outer(every, workers, feeds_back=feeds_back)
    assert (chosen.lr, chosen.momentum) == outer
