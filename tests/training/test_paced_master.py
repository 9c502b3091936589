"""Rounds of a given time with a master, which determines their steps from the speeds of workers."""

from pathlib import Path

import pytest
import torch
from support.harness import largest_difference, run_threads
from training.test_local_replicas import cut, ended
from training.test_paced_rounds import paced, rounds_of, same, weighted_by_hand

from atomo.config.settings import Settings
from atomo.errors import FrameError
from atomo.exchange import Pace
from atomo.exchange.parameter_server.frames.messages import pace_frame, read_pace

OUTER = "sgd(lr=0.7, momentum=0.9, nesterov=yes)"


def served(train_dir: Path, **changes: object) -> Settings:
    """Returns a short run of a master and two workers in rounds of half a second."""
    return paced(train_dir, **({"n": 3, "comm_type": "ParameterServer"} | changes))


EQUAL = [
    {"code": "topk(ratio=0.1)", "optimizer": "adam", "down": "updates"},
    {"local_steps": "0: 1; 0.1: 4", "optimizer": "adam", "outer": OUTER},
    {"network": "networks:normed", "down": "weights", "outer": "sign", "momentum": 0.0},
]


@pytest.mark.slow
@pytest.mark.parametrize("case", EQUAL, ids=str)
def test_equal_speeds_have_the_bits_of_a_number_of_steps(case, clocks, tmp_path):
    clocks(0.125, 0.125)  # four steps in half a second
    common = {"local_steps": "4", "max_steps": 10} | case
    by_time = ended(served(tmp_path / "time", **common))
    by_number = ended(served(tmp_path / "number", **(common | {"local_seconds": 0.0})))
    assert same(by_time, by_number)


@pytest.mark.slow
@pytest.mark.parametrize("down", ["updates", "weights", "delta(sgd)"])
def test_differences_weigh_by_samples(down, clocks, tmp_path):
    seconds = 0.125, 0.125, 0.375  # 9.33 batches in half a second: rounds of 3 steps
    clocks(*seconds)
    chosen = served(tmp_path, n=4, down=down, max_steps=8, momentum=0.5)
    trained = ended(chosen)
    lines = rounds_of(tmp_path)
    assert [line["round_steps"] for line in lines] == [3, 3, 2]
    assert [line["round_steps_of"] for line in lines] == [[3, 3, 3], [4, 4, 1], [3, 2, 1]]
    assert all(line["images_used"] == line["images_asked"] for line in lines)
    alone = paced(tmp_path, n=3, max_steps=8, momentum=0.5)
    expected = weighted_by_hand(alone, [([1.0] * 3, 3), (seconds, 3), (seconds, 2)])
    for name, tensor in expected.items():
        torch.testing.assert_close(trained.model[name].double(), tensor, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("outer", [OUTER, "sign"])
def test_a_master_trains_as_replicas_do(outer, clocks, tmp_path):
    clocks(0.125, 0.375)
    common = {"local_seconds": 1.5, "max_steps": 12, "outer": outer, "momentum": 0.0}
    by_master = ended(served(tmp_path / "served", **common))
    replicas = ended(paced(tmp_path / "replicas", **common))
    each = [rounds_of(tmp_path / name) for name in ("served", "replicas")]
    assert [line["round_steps_of"] for line in each[0]] == [[3, 3], [12, 4], [1, 1]]
    assert [line["round_steps_of"] for line in each[1]] == [[3, 3], [12, 4], [1, 1]]
    if outer != "sign":  # where a mean is nearly 0, its sign is that of a rounding
        assert largest_difference(by_master.model, replicas.model) < 1e-5


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(clocks, tmp_path):
    clocks(0.125, 0.375)
    common = {"local_seconds": 1.5, "max_steps": 18, "eval_freq": 1, "optimizer": "adam"}
    whole = ended(served(tmp_path / "whole", **common))
    ends = [line["step"] for line in rounds_of(tmp_path / "whole")]
    for step in ends[:2]:
        folder = tmp_path / f"after-{step}"
        cut(tmp_path / "whole", folder, step)
        assert same(whole, ended(served(folder, **common))), step
        assert [line["step"] for line in rounds_of(folder)] == ends


@pytest.mark.slow
def test_a_worker_that_is_late_follows_rounds_that_it_missed(clocks, tmp_path):
    clocks(0.125, 0.125, 0.125)
    common = {"n": 4, "num_aggregate": 2, "memory": "residual", "code": "topk(ratio=0.1)"}
    run_threads(served(tmp_path, max_steps=40, down="updates", **common))
    lines = rounds_of(tmp_path)
    assert lines[-1]["step"] == 40
    assert all(len(line["round_steps_of"]) >= 2 for line in lines)


def test_a_pace_that_is_no_round_is_refused():
    pace = Pace(4, 9, (0.5, 0.25))
    assert read_pace(pace_frame(2, pace), 3) == pace
    for first, last, seconds in [(0, 3, (1.0,)), (4, 3, (1.0,)), (1, 2, ()), (1, 2, (-1.0,))]:
        with pytest.raises(FrameError, match="due"):
            read_pace(pace_frame(2, Pace(first, last, seconds)), 3)
    with pytest.raises(FrameError):
        read_pace(pace_frame(2, Pace(1, 2, (0.1,) * 4)), 3)
