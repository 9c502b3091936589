"""Runs whose workers make Adam's update: AdamW where nothing is lost, and the same bits later."""

from dataclasses import replace

import pytest
import torch
from support.harness import largest_difference, plain_sgd, run_threads, settings
from support.networks import SMALL
from support.selection import slow_but
from torch import Size, nn

from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.fusion import plan
from atomo.options.grouping import ONE
from atomo.training.checkpoints.checkpoint import load
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer

(BUCKET,) = plan([("weight", Size((3, 4))), ("bias", Size((4,)))], make_codec("sgd"), ONE)
WAYS = [{"n": 2}, {"n": 1, "comm_type": "Allgather"}, {"n": 2, "down": "updates"}]


@pytest.mark.parametrize("way", slow_but(WAYS[:1], WAYS), ids=str)
def test_one_worker_that_sends_all_takes_the_steps_of_adamw(way, tmp_path):
    chosen = settings(
        tmp_path, network=SMALL, code="sgd", memory="adam", optimizer="adam", lr=1e-3,
        weight_decay=0.1, max_steps=5, batch_size=16, **way,
    )  # fmt: skip
    run_threads(chosen)

    def adamw(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    expected = plain_sgd(chosen, [1e-3] * 5, adamw)
    assert largest_difference(expected, load(tmp_path, 5).model) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("comm_type", ["ParameterServer", "Allgather"])
def test_a_run_that_continues_has_its_moments(comm_type, tmp_path):
    common = {
        "n": 3 if comm_type == "ParameterServer" else 2, "comm_type": comm_type, "network": SMALL,
        "code": "topk(ratio=0.1)", "optimizer": "adam", "lr": 1e-3, "batch_size": 8,
    }  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_threads(settings(whole, max_steps=4, **common))
    run_threads(settings(parts, max_steps=2, **common))
    run_threads(settings(parts, max_steps=4, **common))
    first, second = load(whole, 4), load(parts, 4)
    pairs = [(first.model, second.model), *zip(first.workers, second.workers, strict=True)]
    assert all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)
    kinds = {name.split("/")[1] for name in first.workers[0] if name.startswith("memory/")}
    assert kinds == {"residual", "exp_avg", "exp_avg_sq", "steps"}
    assert not [name for name in first.optimizer if "exp_avg" in name]
    longer = settings(parts, max_steps=5, **(common | {"n": 4}))
    run_threads(longer)  # another number of workers: each begins with the mean
    assert float(load(parts, 5).workers[0]["memory/steps/" + next(iter(first.model))]) == 5


def optimizer(chosen: Settings) -> FlatOptimizer:
    made = FlatOptimizer(torch.ones(BUCKET.size), [BUCKET], chosen, LearningRate(chosen))
    made.gradient.fill_(0.5)
    return made


@pytest.mark.parametrize("decay_norms", [True, False])
def test_the_master_subtracts_the_update_and_the_decay_alone(decay_norms):
    chosen = Settings(
        optimizer="adam", lr=0.1, weight_decay=0.2, decay_norms=decay_norms, code="topk"
    ).resolved()
    made = optimizer(chosen)
    made.step(1)
    assert made.state_dict() == {}
    for slot in BUCKET.slots:
        decayed = decay_norms or slot.name == "weight"
        expected = torch.full((slot.stop - slot.start,), 1 - 0.1 * (0.5 + 0.2 * decayed))
        torch.testing.assert_close(made.weights[slot.start : slot.stop], expected)


def test_a_state_of_adam_at_the_master_is_refused():
    chosen = Settings(optimizer="adam", code="topk", memory="residual").resolved()
    there = optimizer(chosen)
    there.step(1)
    with pytest.raises(CheckpointError, match=r"has exp_avg, exp_avg_sq, step of the optimizer"):
        optimizer(replace(chosen, memory="adam")).load_state_dict(there.state_dict())
