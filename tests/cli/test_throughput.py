"""The command `throughput`: its measurements and its report."""

import math

import pytest

from atomo.cli.throughput import MeasuredSteps, compared_runs, plan_steps, speed, table
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.training.job.events import StepDone


def step(number: int, images_per_s: float, step_s: float) -> StepDone:
    zeros = dict.fromkeys(
        ["epoch", "loss", "accuracy", "lr", "compute_s", "encode_s", "send_s", "wait_s",
         "decode_s", "update_s", "eta_s"], 0.0
    )  # fmt: skip
    return StepDone(
        step=number, workers=2, images_per_s=images_per_s, up_bytes=100, down_bytes=0,
        dense_bytes=0, step_s=step_s, **zeros,
    )  # fmt: skip


def test_the_mean_and_its_spread_are_over_measurements_of_several_steps():
    plan = MeasuredSteps(num_warmup_batches=1, num_batches_per_iter=2, num_iters=2)
    # 64 images a step: in 1 s and 3 s, which are 32 a second, and in 1 s and 1 s, which are 64.
    steps = [step(1, 1.0, 64.0), step(2, 64.0, 1.0), step(3, 64 / 3, 3.0)]
    steps += [step(4, 64.0, 1.0), step(5, 64.0, 1.0)]
    found = speed("sgd", steps, plan)
    assert found.mean == pytest.approx(48)
    assert found.spread == pytest.approx(1.96 * 16)
    assert found.sent_bytes == 100
    assert math.isclose(plan.steps, 5)
    with pytest.raises(ConfigError, match="the run had 4 steps; the plan needs 5"):
        speed("sgd", steps[:4], plan)
    assert table([found, found], Settings()).row_count == 2


def test_the_plan_is_told_apart_from_the_options_of_the_run():
    plan, rest = plan_steps(
        ["--network", "FC", "--num-iters", "3", "--lr=1", "--num_warmup_batches=0"]
    )
    assert plan == MeasuredSteps(num_warmup_batches=0, num_iters=3)
    assert rest == ["--network", "FC", "--lr=1"]
    with pytest.raises(ConfigError, match="--num-iters must be at least 1, got 0"):
        plan_steps(["--num-iters=0"])
    with pytest.raises(ConfigError, match="'many' is not a whole number"):
        plan_steps(["--num-iters=many"])


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({"code": "sgd"}, 1),
        ({"code": "topk", "compress_ratio": 0.1, "memory": "residual"}, 2),
        ({"code": "sgd", "code_for": "svd(rank=2): fc*"}, 2),
        ({"code_schedule": "0: sgd; 1: dgc"}, 2),
        ({"comm_type": "PowerSGD", "svd_rank": 4}, 2),  # whose memory is not none
        ({"comm_type": "Chunked", "code": "chunktopk"}, 2),
    ],
    ids=str,
)
def test_dense_comes_first_in_every_way_to_average(changes, runs):
    found = compared_runs(Settings(**changes))
    assert len(found) == runs
    dense = found[0].resolved()
    assert (dense.code, dense.code_for, dense.code_schedule) == ("sgd", "", "")
    assert found[0].comm_type == found[-1].comm_type
