"""The master's optimizer with memories that apply momentum at the workers."""

import pytest
import torch
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.fusion import plan
from atomo.options.grouping import ONE
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer

(BUCKET,) = plan([("weight", Size((3, 4))), ("bias", Size((4,)))], make_codec("sgd"), ONE)


def optimizer(memory: str, nesterov: bool = False) -> tuple[FlatOptimizer, Tensor]:
    chosen = Settings(
        lr=0.1, weight_decay=1e-2, momentum=0.9, nesterov=nesterov, memory=memory, code="sgd"
    ).resolved()
    weights = torch.ones(BUCKET.size)
    return FlatOptimizer(weights, [BUCKET], chosen, LearningRate(chosen)), weights


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_has_momentum_also_where_gradients_get_theirs_from_the_workers(nesterov):
    (plain, expected), (apart, weights) = (
        optimizer("none", nesterov),
        optimizer("dgc", nesterov),
    )
    momentum = torch.zeros(BUCKET.size)
    for step in range(1, 101):
        gradient = torch.full_like(momentum, 0.01 if step < 5 else 0.0)
        plain.gradient.copy_(gradient)
        plain.step(step)
        momentum = 0.9 * momentum + gradient  # as a worker sends it
        apart.gradient.copy_(gradient + 0.9 * momentum if nesterov else momentum)
        apart.step(step)
        torch.testing.assert_close(weights, expected)
    assert float(weights.max()) < 0.4  # 0.9 without momentum


def test_the_momentum_of_weight_decay_survives_a_checkpoint():
    (whole, expected), (before, weights) = optimizer("dgc"), optimizer("dgc")
    for step in range(1, 21):
        whole.gradient.zero_()
        whole.step(step)
        before.gradient.zero_()
        before.step(step)
        if step == 10:
            state, carried = before.state_dict(), weights.clone()
            before, weights = optimizer("dgc")
            weights.copy_(carried)
            before.load_state_dict(state)
    assert weights.equal(expected)


def test_a_checkpoint_without_momentum_of_weight_decay_begins_at_none():
    fresh, weights = optimizer("dgc")
    fresh.load_state_dict({})
    fresh.gradient.zero_()
    fresh.step(1)
    torch.testing.assert_close(weights, torch.full_like(weights, 0.999))


@pytest.mark.parametrize("nesterov", [False, True])
def test_decay_with_momentum_of_its_own_leaves_norms_and_biases_alone_too(nesterov):
    for memory in ("none", "dgc"):
        chosen = Settings(
            lr=0.1, weight_decay=0.5, nesterov=nesterov, memory=memory, code="sgd",
            decay_norms=False,
        ).resolved()  # fmt: skip
        weights = torch.ones(BUCKET.size)
        made = FlatOptimizer(weights, [BUCKET], chosen, LearningRate(chosen))
        for step in range(1, 4):
            made.gradient.zero_()
            made.step(step)
        for slot in BUCKET.slots:
            assert bool((weights[slot.start : slot.stop] == 1).all()) == (slot.name == "bias")
