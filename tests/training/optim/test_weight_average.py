"""The moving average of the weights: equal to PyTorch's, kept over a restart, and evaluated with
the weights.
"""

import json

import pytest
import torch
from support.harness import run_threads, settings
from support.networks import SMALL
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from atomo.cli import main
from atomo.training.checkpoints.checkpoint import load
from atomo.training.optim.weight_average import WeightAverage, averaged

COMMON = {"network": SMALL, "code": "sgd", "max_steps": 6, "batch_size": 16}


def test_it_is_pytorchs_average_of_the_weights_after_each_step(tmp_path):
    run_threads(settings(tmp_path, ema_decay=0.7, eval_freq=1, **COMMON))
    holder = nn.ParameterDict()
    average = None
    for step in range(1, 7):
        for name, tensor in load(tmp_path, step).model.items():
            holder[name.replace(".", "-")] = nn.Parameter(tensor)
        if average is None:
            average = AveragedModel(holder, multi_avg_fn=get_ema_multi_avg_fn(0.7))
        average.update_parameters(holder)
    last = load(tmp_path, 6)
    saved = averaged(last.model, last.optimizer)
    assert saved.keys() == last.model.keys()
    for name, tensor in average.module.items():
        torch.testing.assert_close(saved[name.replace("-", ".")], tensor.data, rtol=0, atol=1e-7)


@pytest.mark.parametrize("way", [{"down": "updates"}, {"comm_type": "Allgather", "n": 2}], ids=str)
@pytest.mark.slow
def test_it_has_no_say_in_training_and_survives_a_stop(way, tmp_path):
    run_threads(settings(tmp_path / "plain", **COMMON))
    events: list[object] = []
    stopped = settings(tmp_path / "parts", ema_decay=0.5, eval_freq=3, **COMMON, **way)
    run_threads(stopped, events.append, lambda: len(events) > 4)
    run_threads(stopped)
    run_threads(settings(tmp_path / "whole", ema_decay=0.5, **COMMON))
    plain, parts, whole = (load(tmp_path / name, 6) for name in ("plain", "parts", "whole"))
    assert not averaged(plain.model, plain.optimizer)
    for name, tensor in plain.model.items():
        assert tensor.equal(parts.model[name])
    mean, expected = (averaged(snapshot.model, snapshot.optimizer) for snapshot in (parts, whole))
    assert all(tensor.equal(mean[name]) for name, tensor in expected.items())
    assert not any(tensor.equal(whole.model[name]) for name, tensor in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("way", [{"down": "updates"}, {"comm_type": "Allgather"}], ids=str)
def test_only_who_writes_checkpoints_keeps_it(way, tmp_path, monkeypatch):
    update, averages = WeightAverage.update, list[WeightAverage]()

    def counted(average: WeightAverage, weights: torch.Tensor, steps: int = 1) -> None:
        averages.append(average)
        update(average, weights, steps)

    monkeypatch.setattr(WeightAverage, "update", counted)
    for steps in (2, 4):  # a resume hands out no average either
        run_threads(settings(tmp_path, ema_decay=0.5, **(COMMON | way | {"max_steps": steps})))
    assert len(averages) == 4
    assert len(set(map(id, averages))) == 2  # one a run


@pytest.mark.slow
def test_a_run_may_begin_or_drop_it_on_a_resume(tmp_path):
    run_threads(settings(tmp_path, **(COMMON | {"max_steps": 2})))
    run_threads(settings(tmp_path, ema_decay=0.5, **(COMMON | {"max_steps": 4})))
    assert averaged({}, load(tmp_path, 4).optimizer)
    run_threads(settings(tmp_path, **COMMON))
    assert not averaged({}, load(tmp_path, 6).optimizer)


@pytest.mark.slow
def test_both_are_evaluated(tmp_path, capfd):
    run_threads(settings(tmp_path, ema_decay=0.99, **(COMMON | {"network": "FC", "max_steps": 12})))
    assert main(["evaluate", f"--model-dir={tmp_path}"]) == 0
    line = capfd.readouterr().out
    assert line.startswith("step 12: test top-1 ")
    assert "; average top-1 " in line
    (record,) = map(json.loads, (tmp_path / "evaluations.jsonl").read_text().splitlines())
    assert record["average_loss"] > record["loss"]  # the average lags behind
    assert 0 <= record["average_top1"] <= record["average_top5"] <= 1
