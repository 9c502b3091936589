"""Scores of checkpoints, the order of evaluations, and the settings of the evaluator."""

import errno
import os
from functools import partial

import numpy as np
import pytest
import torch
from support.evaluations import (
    CLASSES,
    IMAGES,
    Noise,
    checkpoint,
    linear,
    log,
    nothing,
    order,
    real,
    reported,
    settings,
    small,
    weights,
)

from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import Snapshot, finish, load, save, steps
from atomo.training.checkpoints.pruning import delete
from atomo.training.evaluation.best_checkpoint import BestCheckpoint
from atomo.training.evaluation.evaluator import Evaluation, evaluate
from atomo.training.folder import run_folder
from atomo.training.folder.ownership import EVALUATOR, FolderTaken, own
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

__all__ = ["real", "small"]  # fixtures

# --- how good a checkpoint is


def by_hand(step: int, classes: int = CLASSES) -> tuple[float, float, float]:
    split, parts = Noise(classes), weights(step, classes)
    weight, bias = parts["1.weight"].double().numpy(), parts["1.bias"].double().numpy()
    logits = split.images.double().numpy().reshape(IMAGES, 4) @ weight.T + bias
    labels = split.labels.numpy()
    own = logits[np.arange(IMAGES), labels]
    above = (logits > own[:, None]).sum(1)
    loss = np.log(np.exp(logits).sum(1)) - own
    return (above < 1).mean(), (above < min(5, classes)).mean(), loss.mean()


@pytest.mark.parametrize("batch", [1, 5, IMAGES, 10_000])
def test_top1_top5_and_loss(tmp_path, batch):
    checkpoint(tmp_path, 3)
    finish(tmp_path, 3, "done")
    (result,) = reported(settings(tmp_path, eval_batch_size=batch))
    assert (result.step, result.samples) == (3, IMAGES)
    top1, top5, loss = by_hand(3)
    assert 0 < top1 < top5 < 1
    assert (result.values["top1"], result.values["top5"]) == pytest.approx((top1, top5), abs=1e-12)
    assert result.values["loss"] == pytest.approx(loss, rel=1e-5)


def test_fewer_than_five_classes(tmp_path):
    config = {"network": "Plain", "dataset": "Three"}
    save(tmp_path, Snapshot(1, weights(1, classes=3), {}, (), config))
    finish(tmp_path, 1, "done")
    (result,) = reported(settings(tmp_path))
    assert (result.values["top1"], result.values["top5"]) == pytest.approx(
        (by_hand(1, classes=3)[0], 1.0)
    )


def test_uses_the_batch_norm_statistics_of_each_checkpoint(tmp_path):
    expected = []
    for step in (1, 2):
        network = linear("Normed", (1, 2, 2), CLASSES)
        network[2].running_mean.normal_(generator=torch.Generator().manual_seed(step))
        network[2].running_var.fill_(step)
        config = {"network": "Normed", "dataset": "Noise"}
        save(tmp_path, Snapshot(step, network.state_dict(), {}, (), config))
        logits = network.eval()(Noise(CLASSES).images)
        expected.append(float((logits.argmax(1) == Noise(CLASSES).labels).double().mean()))
    finish(tmp_path, 2, "done")
    assert [r.values["top1"] for r in reported(settings(tmp_path, eval_batch_size=4))] == expected


def test_a_diverged_checkpoint_is_reported_and_its_line_stays_json(tmp_path):
    bad = {name: tensor * float("nan") for name, tensor in weights(1).items()}
    save(tmp_path, Snapshot(1, bad, {}, (), {"network": "Plain", "dataset": "Noise"}))
    finish(tmp_path, 1, "diverged")
    (result,) = reported(settings(tmp_path))
    assert result.values["loss"] != result.values["loss"]
    assert log(tmp_path)[0]["loss"] is None
    assert reported(settings(tmp_path)) == []


def test_the_real_network_and_data(tmp_path, real):
    data = load_dataset("Digits", tmp_path)
    expected = []
    for step in (10, 20):
        torch.manual_seed(step)
        network = build_model("LeNet", data.input_shape, data.classes)
        config = {"network": "LeNet", "dataset": "Digits", "image_size": 0}
        save(tmp_path / "run", Snapshot(step, network.state_dict(), {}, (), config))
        images, labels = data.test.batch(torch.arange(len(data.test)))
        with torch.no_grad():
            logits = network.eval()(images)
        expected.append(float((logits.argmax(1) == labels).double().mean()))
    finish(tmp_path / "run", 20, "done")
    results = reported(settings(tmp_path / "run", eval_batch_size=100, network="lenet"))
    assert [r.samples for r in results] == [360, 360]
    assert [r.values["top1"] for r in results] == pytest.approx(expected)


# --- the best checkpoint


def test_the_best_checkpoint_outlives_those_that_a_run_deletes(tmp_path):
    values = {step: by_hand(step)[0] for step in range(20, 28)}
    best = max(values, key=lambda step: (values[step], -step))
    assert 20 < best < 27
    steps_now = iter(range(21, 28))

    def train() -> None:
        checkpoint(tmp_path, next(steps_now), keep=1)

    checkpoint(tmp_path, 20)
    reported(settings(tmp_path, keep_best=True), *[train] * 7, lambda: finish(tmp_path, 27, "done"))
    assert steps(tmp_path) == [27]
    assert steps(tmp_path / "best") == [best]
    kept = load(tmp_path / "best", best)
    assert kept.model["1.bias"].equal(weights(best)["1.bias"])
    assert kept.workers[0]["r"].equal(torch.ones(3))


def test_an_evaluator_that_begins_again_keeps_a_better_copy_of_the_one_before(tmp_path):
    values = {step: by_hand(step)[0] for step in (1, 2, 3, 4)}
    worse, better = sorted(values, key=values.__getitem__)[:: len(values) - 1]
    assert values[worse] < values[better]
    checkpoint(tmp_path, better)
    finish(tmp_path, better, "done")
    reported(settings(tmp_path, keep_best=True))
    checkpoint(tmp_path, worse)
    finish(tmp_path, worse, "done")
    reported(settings(tmp_path, keep_best=True))
    assert steps(tmp_path / "best") == [better]


def test_a_best_checkpoint_that_is_gone_by_then_is_kept_without_the_optimizer(tmp_path):
    checkpoint(tmp_path, 1)
    evaluation = Evaluation(1, {"top1": 0.5}, IMAGES, "images")
    best, read = BestCheckpoint(tmp_path), load(tmp_path, 1, parts=["model"])
    delete(tmp_path, 1)
    assert best.offer(evaluation, read)
    kept = load(tmp_path / "best", 1)
    assert kept.model["1.bias"].equal(weights(1)["1.bias"])
    assert kept.workers == ()


# --- each checkpoint once, in order


def test_in_the_order_of_steps_and_once(tmp_path):
    for step in (30, 5, 100000000, 20):
        checkpoint(tmp_path, step)
    finish(tmp_path, 100000000, "done")
    results = reported(settings(tmp_path))
    assert order(results) == [5, 20, 30, 100000000]
    lines = [{"step": r.step, **r.values, "images": r.samples} for r in results]
    assert log(tmp_path) == lines
    assert reported(settings(tmp_path)) == []
    assert len(log(tmp_path)) == 4


def test_waits_for_a_folder_that_does_not_exist_yet_and_creates_nothing(tmp_path):
    folder = tmp_path / "nfs" / "run"
    results = reported(
        settings(folder),
        lambda: not folder.exists() or pytest.fail("created"),
        lambda: checkpoint(folder, 1),
        nothing,
        lambda: checkpoint(folder, 2),
        lambda: finish(folder, 2, "done"),
    )
    assert order(results) == [1, 2]


def test_what_was_saved_just_before_the_end_is_evaluated(tmp_path):
    def last_words():
        checkpoint(tmp_path, 2)
        checkpoint(tmp_path, 3)
        finish(tmp_path, 3, "done")

    checkpoint(tmp_path, 1)
    assert order(reported(settings(tmp_path), last_words)) == [1, 2, 3]


def test_a_restart_goes_on_where_the_killed_one_was(tmp_path):
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    finish(tmp_path, 3, "done")

    def interrupted(result):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(settings(tmp_path), interrupted)
    assert order(reported(settings(tmp_path))) == [2, 3]
    assert [line["step"] for line in log(tmp_path)] == [1, 2, 3]


def test_a_second_evaluator_says_who_the_first_one_is(tmp_path):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    with own(tmp_path, EVALUATOR), pytest.raises(FolderTaken, match=f"process {os.getpid()} on"):
        reported(settings(tmp_path))
    assert order(reported(settings(tmp_path))) == [1]
    assert not (tmp_path / "evaluator.lock").exists()


def test_one_that_takes_over_waits_for_its_predecessor(tmp_path):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    predecessor = own(tmp_path, EVALUATOR)
    ends = partial(predecessor.__exit__, None, None, None)
    assert order(reported(settings(tmp_path, predecessor_s=5.0), nothing, ends)) == [1]


@pytest.mark.parametrize("torn", ['{"step": 2, "to', '{"step": 2}', "\0\0\0", "{"])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    for step in (1, 2):
        checkpoint(tmp_path, step)
    finish(tmp_path, 2, "done")
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    assert order(reported(settings(tmp_path))) == [2]
    assert [line["step"] for line in log(tmp_path)] == [1, 2]


@pytest.mark.parametrize("line", ["nonsense", "7", "{}", '{"step": "1"}', "[1]", "null"])
def test_a_whole_line_that_is_no_evaluation_is_left_to_a_human(tmp_path, line):
    path = tmp_path / "evaluations.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(CheckpointError, match=r"evaluations.jsonl, line 2: not"):
        reported(settings(tmp_path))
    assert path.read_text().endswith(f"{line}\n")


def test_a_result_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    checkpoint(tmp_path, 1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*evaluations.jsonl: No space left"):
        reported(settings(tmp_path))


def test_eval_freq_takes_multiples_and_the_last(tmp_path):
    for step in (5, 10, 15, 20):
        checkpoint(tmp_path, step)

    def end():
        checkpoint(tmp_path, 25)
        finish(tmp_path, 25, "done")

    assert order(reported(settings(tmp_path, eval_freq=10), end)) == [10, 20, 25]


# --- settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": "VGG11"}, "--network VGG11 contradicts.* trained with Plain"),
        ({"dataset": "MNIST"}, "--dataset MNIST contradicts.* trained with Noise"),
        ({"image_size": 64}, "--image-size 64 contradicts.* trained with 0"),
    ],
)
def test_a_contradiction_names_both(tmp_path, given, message):
    checkpoint(tmp_path, 1)
    with pytest.raises(ConfigError, match=message):
        reported(settings(tmp_path, **given))
    assert not (tmp_path / "evaluations.jsonl").exists()


def test_another_spelling_is_no_contradiction(tmp_path):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    assert order(reported(settings(tmp_path, network="plain", dataset="Noise"))) == [1]


def test_a_checkpoint_that_names_nothing_needs_both(tmp_path):
    save(tmp_path, Snapshot(1, weights(1), {}, (), {}))
    finish(tmp_path, 1, "done")
    with pytest.raises(ConfigError, match="network None and dataset 'Noise'"):
        reported(settings(tmp_path, dataset="Noise"))
    assert order(reported(settings(tmp_path, dataset="Noise", network="Plain"))) == [1]


def test_weights_of_another_network_are_refused(tmp_path):
    checkpoint(tmp_path, 1, network="Normed")
    with pytest.raises(CheckpointError, match=r"step 1: .*Missing key.*2.running_mean"):
        reported(settings(tmp_path))


@pytest.mark.parametrize(
    "given",
    [
        {"eval_batch_size": 0},
        {"eval_freq": -1},
        {"poll_interval_s": 0.0},
        {"idle_timeout_s": -1.0},
        {"patience_s": float("nan")},
        {"device": "abacus"},
    ],
)
def test_settings_out_of_range(tmp_path, given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        settings(tmp_path, **given)


# --- TensorBoard


def test_tensorboard_reads_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step in (10, 20):
        checkpoint(tmp_path, step)
    finish(tmp_path, 20, "done")
    results = reported(settings(tmp_path))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("top1", "top5", "loss"):
        scalars = events.Scalars(f"test/{name}")
        assert [s.step for s in scalars] == [10, 20]
        assert [s.value for s in scalars] == pytest.approx([r.values[name] for r in results])


def test_patience_is_what_the_run_folder_says(tmp_path):
    assert settings(tmp_path).patience_s == run_folder.PATIENCE_S
