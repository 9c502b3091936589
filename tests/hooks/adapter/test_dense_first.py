"""`dense_below` and `dense_steps` of hooks and optimizers: what travels as it is, and when."""

from functools import partial

import pytest
import torch
from hooks.loops import STEPS, flat, on_ranks, plainly, steps, total
from torch.optim import SGD

from atomo.errors import CheckpointError, ConfigError
from atomo.hooks.adapter.chunks import DensePolicy

RANKS = 2
make = partial(SGD, lr=0.2)


def sgd(network: torch.nn.Module) -> SGD:
    return make(network.parameters())


@pytest.mark.slow(cases=("powersgd",))
@pytest.mark.parametrize(
    ("code", "memory"),
    [("topk(ratio=0.05)", "residual"), ("qsgd(bits=2)", "none"), ("powersgd(rank=1)", "auto")],
)
def test_first_steps_are_those_of_plain_sgd(code, memory):
    given = {"memory": memory, "dense_steps": STEPS}
    networks, optimizers = on_ranks(RANKS, code, steps(RANKS), sgd, **given)
    torch.testing.assert_close(flat(networks[0]), plainly(sgd))
    assert flat(networks[0]).equal(flat(networks[1]))
    memories = optimizers[0].exchange.state_dict()["memories"]["0"]
    assert not any(bool(one.any()) for one in memories.values())
    stats = optimizers[0].exchange.stats
    assert stats.sent_bytes >= stats.dense_bytes


def test_the_codec_takes_over_behind_them():
    given = {"memory": "residual", "dense_steps": 1}
    sent = []

    def body(rank, network, optimizer):
        for _ in range(2):
            steps(RANKS, 1)(rank, network, optimizer)
            if rank == 0:
                sent.append(optimizer.exchange.stats.sent_bytes)

    _, optimizers = on_ranks(RANKS, "topk(ratio=0.05)", body, sgd, **given)
    assert total(optimizers).any()
    assert sent[1] - sent[0] < sent[0]


@pytest.mark.slow(cases=("topk",))
@pytest.mark.parametrize("code", ["topk(ratio=0.05)", "powersgd(rank=1)"])
def test_small_parameters_travel_dense(code):
    _, optimizers = on_ranks(RANKS, code, steps(RANKS), sgd, dense_below=100)
    kept = optimizers[0].exchange.state_dict()["memories"]["0"]
    assert {name for name, one in kept.items() if one.any()} - {"rate"} == {"0.weight"}


@pytest.mark.parametrize(
    "given", [{}, {"dense_below": 100}, {"dense_below": 100, "dense_steps": 2}]
)
@pytest.mark.parametrize("loading", [{}, {"dense_below": 100}, {"dense_steps": 2}])
def test_a_state_is_loaded_where_the_same_travels_dense(given, loading):
    saved, new = DensePolicy(**given), DensePolicy(**loading)
    if saved == new:
        new.check(saved.state_dict())
        return
    with pytest.raises(CheckpointError, match="give the limits that it was saved with"):
        new.check(saved.state_dict())


def test_states_of_before_are_those_without():
    assert DensePolicy().state_dict() == {"format": 1}
    DensePolicy().check({"format": 1})


def test_a_form_that_was_filled_in_alone_says_that_there_were_some():
    """torch.distributed.checkpoint leaves such a form: it fills in only the entries that are asked
    for.
    """
    with pytest.raises(CheckpointError, match="dense_below not 0, dense_steps not 0, and this one"):
        DensePolicy().check({"format": 2})


@pytest.mark.parametrize("given", [{"dense_below": -1}, {"dense_steps": -2}])
def test_only_whole_numbers_from_0(given):
    with pytest.raises(ConfigError, match="must be a whole number from 0"):
        DensePolicy(**given)
