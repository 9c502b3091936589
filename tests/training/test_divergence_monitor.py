"""A run that begins to diverge says so once, while its loss is a number, and names the cause."""

import re

import pytest
from support.harness import run_threads, settings
from support.networks import SMALL

from atomo.config.settings import Settings
from atomo.errors import Diverged
from atomo.training.job.events import Caution, Event, StepDone
from atomo.training.records.causes import at_start, likely
from atomo.training.records.divergence_monitor import DivergenceMonitor


def alarms(losses: list[float]) -> list[int]:
    watch = DivergenceMonitor()
    return [step for step, loss in enumerate(losses) if watch.alarms(loss)]


def test_a_loss_that_grows_is_told_once_and_early():
    steps = alarms(
        [2.3 * 0.9**step for step in range(30)] + [0.2 * 1.5**step for step in range(20)]
    )
    assert len(steps) == 1
    assert 30 < steps[0] < 42  # the loss is 17 by then, and still far from overflow


@pytest.mark.parametrize(
    "losses",
    [
        [2.3 * 0.98**step for step in range(300)],
        [0.01 + 0.2 * (step % 7 == 0) for step in range(300)],  # batches differ
        [2.3, 2.5, 3.5, 3.0, 2.4, 2.0, 1.5],  # a first step too long
        [2.3] * 5 + [0.1] * 20 + [3.0] + [0.1] * 20,  # one bad batch
    ],
)
def test_a_loss_that_only_shakes_is_not_told(losses):
    assert alarms(losses) == []


@pytest.mark.slow(cases=("changes2", "changes3", "changes4"))
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": "topk", "memory": "residual"}, "--memory dgc, .* or --momentum 0"),
        ({"code": "randk(unbiased=False)"}, "sends an entry when it is drawn.*--momentum 0"),
        (
            {"code": "randk(unbiased=False)", "optimizer": "adam"},
            "which Adam shortens to one step; give --code topk",
        ),
        (
            {"code": "topk", "memory": "momentum", "optimizer": "adam"},
            "averages gradients, and Adam does so again.*leave --memory out",
        ),
        ({"code": "signsgd", "lr": 0.02}, "every weight moves by --lr .*, and 0.02 is long"),
        (
            {"code": "dgc", "memory": "none", "optimizer": "adam"},
            "the few entries that dgc sends, and Adam .*; leave --memory out",
        ),
        (
            {"code": "svd(rank=3)", "optimizer": "adamw"},
            r"svd draws the atoms .*, and Adam .*; give --code 'svd\(selection=top\)'",
        ),
    ],
)
def test_what_the_settings_alone_say_is_told_before_the_first_step(changes, words, tmp_path):
    events: list[Event] = []
    run_threads(settings(tmp_path, network=SMALL, max_steps=1, **changes), events.append)
    assert isinstance(events[1], Caution)
    assert isinstance(events[2], StepDone)
    assert re.search(words, events[1].text)


def test_momentum_after_factors_that_are_late_is_told_before_the_first_step():
    chosen = Settings(comm_type="ACPSGD", memory="residual", svd_rank=1)
    (text,) = at_start(chosen.resolved())
    assert re.search("have delayed; give --memory dgc, which applies it before them", text)


@pytest.mark.parametrize("comm_type", ["PowerSGD", "ACPSGD"])
def test_heavy_ball_momentum_after_factors_is_told_before_the_first_step(comm_type):
    chosen = Settings(comm_type=comm_type, memory="residual", nesterov=False)
    (text,) = at_start(chosen.resolved())
    assert re.search("have delayed: it ends lower, or diverges; leave --nesterov out", text)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"code": "topk"},
        {"code": "fp16"},
        {"code": "natural", "memory": "residual"},
        {"n": 2},
        {"comm_type": "PowerSGD"},
        {"comm_type": "PowerSGD", "svd_rank": 1},
        {"comm_type": "PowerSGD", "code": "sgd"},
        {"comm_type": "ACPSGD"},
        {"comm_type": "ACPSGD", "memory": "residual"},
        {"comm_type": "ACPSGD", "memory": "residual", "optimizer": "adam"},
        {"comm_type": "PowerSGD", "svd_rank": 1, "memory": "dgc"},
        {"code": "signsgd"},
        {"code": "signum", "optimizer": "adam"},
        {"optimizer": "adam", "code": "svd(selection=top)"},
        {"optimizer": "adam", "code": "qsgd"},
        {"code": "dgc", "optimizer": "adam"},
        {"code": "dgc", "memory": "none"},
        {"code": "topk", "memory": "none", "optimizer": "adam"},
    ],
    ids=str,
)
def test_what_trains_is_told_nothing(changes):
    assert list(at_start(Settings(**changes).resolved())) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 2, "noise_damping": False}, r"errors of svd .* so few workers \(1\)"),
        ({"optimizer": "adam"}, "Adam does not shorten its steps"),
        ({"optimizer": "adam", "code": "qsgd"}, "--noise-damping on with --optimizer sgd"),
        ({"n": 4, "num_aggregate": 1, "code": "topk"}, "1 of 3 workers close a step"),
        ({"code": "topk", "memory": "dgc(masking=False)"}, "keeps the momentum of sent entries"),
        (
            {"comm_type": "PowerSGD"},
            "the factors of --comm-type PowerSGD have delayed; give a lower --lr, a higher",
        ),
        ({"code": "sgd", "lr": 7.0}, "--lr 7 is too high"),
    ],
    ids=str,
)
def test_the_likeliest_cause_is_named(changes, words):
    assert re.search(words, likely(Settings(**changes).resolved()))


@pytest.mark.slow
def test_a_run_that_diverges_says_so_first_and_ends_with_the_cause(tmp_path):
    events: list[Event] = []
    chosen = settings(tmp_path, network="FC", code="sgd", lr=2.0, max_steps=200)
    with pytest.raises(Diverged, match=r"--lr 2 is too high here, .*the last checkpoint is kept"):
        run_threads(chosen, events.append)
    assert [event for event in events if isinstance(event, Caution)]


def test_a_gradient_that_overflows_has_diverged_whatever_its_codec_says(tmp_path):
    chosen = settings(tmp_path, network=SMALL, code="topk", lr=1e30, momentum=0.0)
    with pytest.raises(Diverged):
        run_threads(chosen)
