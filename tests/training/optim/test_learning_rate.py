"""Schedules are PyTorch's own, a pure function of the step, and every way of training has them."""

from collections.abc import Callable

import pytest
import torch
from support.harness import largest_difference, plain_sgd, run_threads, settings
from support.networks import SMALL
from support.selection import slow_but
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
    StepLR,
)

from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments
from atomo.errors import ConfigError
from atomo.training.checkpoints.checkpoint import load
from atomo.training.optim.learning_rate import LearningRate

EPOCH, LAST = 5, 40  # steps

Torch = Callable[[torch.optim.Optimizer], LRScheduler]


def torchs(scheduler: Torch, lr: float = 0.4) -> list[float]:
    """Returns the rates of a PyTorch scheduler that is stepped after each step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    made, rates = scheduler(optimizer), []
    for _ in range(LAST):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    return rates


def ours(**changes: object) -> list[float]:
    """Returns the rates of a run of `steps` steps."""
    chosen = Settings(lr=changes.pop("lr", 0.4), **changes).resolved()  # type: ignore[arg-type]
    rate = LearningRate(chosen, EPOCH, LAST)
    return [rate.at(step) for step in range(1, LAST + 1)]


def warm(start: float, steps: int, then: Torch) -> Torch:
    def both(optimizer: torch.optim.Optimizer) -> LRScheduler:
        rising = LinearLR(optimizer, start, total_iters=steps)
        return SequentialLR(optimizer, [rising, then(optimizer)], [steps])

    return both


@pytest.mark.parametrize(
    ("changes", "scheduler"),
    [
        ({"schedule": "constant"}, lambda o: StepLR(o, LAST)),
        ({"schedule": "step", "lr_step_epochs": 2.0}, lambda o: StepLR(o, 10)),
        (
            {"schedule": "multistep", "lr_milestones": "2, 3.6, 7", "lr_gamma": 0.3},
            lambda o: MultiStepLR(o, [10, 18, 35], gamma=0.3),
        ),
        ({"schedule": "cosine"}, lambda o: CosineAnnealingLR(o, LAST)),
        ({"schedule": "cosine", "lr_end": 0.1}, lambda o: CosineAnnealingLR(o, LAST, 0.04)),
        ({"schedule": "linear", "lr_end": 0.2}, lambda o: LinearLR(o, 1.0, 0.2, LAST)),
        ({"lr_shrinkage": 0.5, "lr_shrink_freq": 7}, lambda o: StepLR(o, 7, 0.5)),
        (
            {"schedule": "cosine", "lr_warmup_epochs": 2.0},
            warm(0.1, 10, lambda o: CosineAnnealingLR(o, LAST - 10)),
        ),
        (
            {"schedule": "linear", "lr_warmup_epochs": 1.0, "lr_warmup_from": 0.5},
            warm(0.5, 5, lambda o: LinearLR(o, 1.0, 0.0, LAST - 5)),
        ),
        # Milestones are epochs of the run, as published ones are, also after a warm-up.
        (
            {"schedule": "multistep", "lr_milestones": "4,6", "lr_warmup_epochs": 2.0},
            warm(0.1, 10, lambda o: MultiStepLR(o, [10, 20])),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "pytorch",
)
def test_a_schedule_is_pytorchs_of_that_name(changes, scheduler):
    assert ours(**changes) == pytest.approx(torchs(scheduler), rel=1e-7)


def test_a_schedule_by_epochs_moves_where_a_loop_over_epochs_steps_it():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler, rates = CosineAnnealingLR(optimizer, LAST // EPOCH), []
    for _ in range(LAST // EPOCH):
        rates += EPOCH * [optimizer.param_groups[0]["lr"]]
        optimizer.step()
        scheduler.step()
    assert ours(schedule="cosine", lr_by_epoch=True) == pytest.approx(rates, rel=1e-7)


def test_a_rate_for_all_workers_begins_at_that_of_one():
    rates = ours(n=5, lr=0.1, lr_scale_by_workers=True, lr_warmup_epochs=4.0)
    assert rates == pytest.approx(torchs(lambda o: LinearLR(o, 0.25, total_iters=20)), rel=1e-7)
    without_master = ours(n=4, comm_type="Allgather", lr=0.1, lr_scale_by_workers=True)
    assert without_master == pytest.approx([0.4] * LAST, rel=1e-12)


@pytest.mark.parametrize(("memory", "counted"), [("none", 2), ("residual", 4)])
def test_a_rate_for_all_workers_is_for_those_whose_gradients_count(memory, counted, tmp_path):
    options = {"n": 5, "num_aggregate": 2, "memory": memory, "code": "topk(ratio=0.1)"}
    scaled = settings(tmp_path, lr=0.1, lr_scale_by_workers=True, **options)
    assert scaled.peak_lr == pytest.approx(0.1 * counted)
    assert scaled.warmup_from == pytest.approx(1 / counted)


SCHEDULED = {
    "network": SMALL,
    "batch_size": 70,  # 10 steps an epoch
    "max_steps": 14,
    "schedule": "cosine",
    "lr_warmup_epochs": 0.3,
    "lr_scale_by_workers": True,
    "seed": 4,
}


def test_training_with_a_schedule_is_plain_sgd_with_pytorchs(tmp_path):
    chosen = settings(tmp_path, code="sgd", **SCHEDULED)
    run_threads(chosen)

    def scheduler(optimizer: torch.optim.Optimizer) -> LRScheduler:
        return warm(0.5, 3, lambda o: CosineAnnealingLR(o, 11))(optimizer)

    expected = plain_sgd(chosen, torchs(scheduler, 2 * chosen.lr))
    assert largest_difference(expected, load(tmp_path, 14).model) < 1e-5


WAYS = [{"down": "updates"}, {"n": 2, "comm_type": "Allgather"}, {"eval_freq": 6}]


@pytest.mark.slow
@pytest.mark.parametrize("way", slow_but(WAYS[:1], WAYS), ids=str)
def test_who_repeats_or_continues_steps_has_the_same_rates(way, tmp_path):
    """Memories in units of the update follow the rate as well."""
    common = {"code": "fp16", "memory": "residual(units=update)", **SCHEDULED}
    run_threads(settings(tmp_path / "plain", **common))
    variant = settings(tmp_path / "other", **(common | way))
    events: list[object] = []
    run_threads(variant, events.append, lambda: "eval_freq" in way and len(events) > 7)
    run_threads(variant)
    plain, repeated = load(tmp_path / "plain", 14), load(tmp_path / "other", 14)
    assert all(tensor.equal(repeated.model[name]) for name, tensor in plain.model.items())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--schedule=cosin", r"unknown schedule 'cosin'; did you mean 'cosine'\?"),
        ("--schedule=multistep", r"multistep needs its epochs: --lr-milestones '30, 60, 80'"),
        ("--lr-milestones=3,x", r"--lr-milestones: cannot read '3,x'; write '30, 60, 80'"),
        ("--lr-milestones=60,30", r"'60,30': name epochs above 0 in increasing order"),
        ("--lr-milestones=0,30", r"'0,30': name epochs above 0"),
        ("--lr-warmup-from=0", r"--lr-warmup-from must be above 0, got 0\.0: a step of 0"),
        ("--code=svd --warmup-epochs=3", r"no ratio .* of the learning rate is --lr-warmup"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_arguments(Settings, words.split(), "train", "").resolved()
