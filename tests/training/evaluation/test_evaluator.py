import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Flatten, Linear, Module, Sequential

from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import Snapshot, finish, save, unfinish
from atomo.training.evaluation import evaluator
from atomo.training.evaluation.evaluator import Evaluation, EvaluatorSettings, Missed, evaluate
from atomo.training.folder import run_folder
from atomo.training.folder.ownership import EVALUATOR, FolderTaken, own
from atomo.workloads import images
from atomo.workloads.datasets import Dataset, Split, load_dataset
from atomo.workloads.models import build_model

IMAGES, CLASSES = 23, 7


class Noise(Split):
    """Images of four random pixels, with random labels."""

    def __init__(self, classes: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(IMAGES, 1, 2, 2, generator=generator)
        self.labels = torch.randint(classes, (IMAGES,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, seed: int | None = None) -> tuple[Tensor, Tensor]:
        assert seed is None
        return self.images[indices], self.labels[indices]


def linear(name: str, input_shape: tuple[int, int, int], classes: int) -> Module:
    assert name in ("Plain", "plain", "Normed")
    layers = [Flatten(), Linear(4, classes)]
    return Sequential(*layers, BatchNorm1d(classes)) if name == "Normed" else Sequential(*layers)


@pytest.fixture(autouse=True)
def small(monkeypatch, request):
    """Unless a test asks for the real ones: a network and a data set that take no time."""
    if "real" in request.fixturenames:
        return

    def data(name: str, data_dir: Path, image_size: int | None = None) -> Dataset:
        classes = {"Noise": CLASSES, "Three": 3}[name]
        return Dataset(name, classes, (1, 2, 2), Noise(classes), Noise(classes))

    monkeypatch.setattr(images, "load_dataset", data)
    monkeypatch.setattr(images, "build_model", linear)


@pytest.fixture
def real():
    return None


def weights(step: int, classes: int = CLASSES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "1.weight": torch.randn(classes, 4, generator=generator),
        "1.bias": torch.randn(classes, generator=generator),
    }


def checkpoint(folder: Path, step: int, keep: int = 0, **config: str | int) -> None:
    config = {"network": "Plain", "dataset": "Noise", "image_size": 0} | config
    save(folder, Snapshot(step, weights(step), {}, ({"r": torch.ones(3)},), config), keep)


def settings(folder: Path, **changes: object) -> EvaluatorSettings:
    return replace(EvaluatorSettings(folder, None, None, folder), **changes)


class Scripted:
    """Instead of sleeping, does the next thing; more waits than things to do are an error."""

    def __init__(self, *things: Callable[[], object]) -> None:
        self.things = list(things)
        self.waited_s = 0.0

    def __call__(self, seconds: float) -> None:
        assert self.things, "waits for ever"
        self.waited_s += seconds
        self.things.pop(0)()


def nothing() -> None:
    pass


def reported(
    options: EvaluatorSettings, *actions: Callable[[], object]
) -> list[Evaluation | Missed]:
    results: list[Evaluation | Missed] = []
    script = Scripted(*actions)

    def report(result: Evaluation | Missed) -> None:
        results.append(result)
        assert len(results) < 10, "goes on for ever"

    count = evaluate(options, report, wait=script)
    assert not script.things, "ends too early"
    assert count == sum(isinstance(result, Evaluation) for result in results)
    return results


def order(results: list[Evaluation | Missed]) -> list[int]:
    return [r.step if isinstance(r, Evaluation) else -r.step for r in results]


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


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


# --- what goes wrong on a shared folder


def test_checkpoints_deleted_before_their_turn_are_missed(tmp_path):
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    results: list[Evaluation | Missed] = []

    def slow(result):
        results.append(result)
        if result.step == 1:
            checkpoint(tmp_path, 4, keep=2)
            finish(tmp_path, 4, "done")

    assert evaluate(settings(tmp_path), slow) == 3
    assert order(results) == [1, -2, 3, 4]
    assert [line["step"] for line in log(tmp_path)] == [1, 3, 4]


def test_deleted_between_listing_and_reading_is_missed_once(tmp_path, monkeypatch):
    checkpoint(tmp_path, 2)
    stale, real = iter([[1, 2], [1, 2], [1, 2]]), evaluator.steps
    monkeypatch.setattr(evaluator, "steps", lambda at, **k: next(stale, None) or real(at, **k))
    anew = [nothing, lambda: checkpoint(tmp_path, 1), lambda: finish(tmp_path, 2, "done")]
    assert order(reported(settings(tmp_path), *anew)) == [-1, 2, 1]


def test_a_missed_step_that_is_written_anew_is_evaluated(tmp_path):
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path, 2)
    results: list[Evaluation | Missed] = []

    def slow(result):
        results.append(result)
        if order(results) == [1]:
            checkpoint(tmp_path, 3, keep=1)

    again = [lambda: checkpoint(tmp_path, 2), lambda: finish(tmp_path, 3, "done")]
    assert evaluate(settings(tmp_path), slow, wait=Scripted(*again)) == 3
    assert order(results) == [1, -2, 3, 2]


def test_files_without_a_manifest_are_not_looked_at(tmp_path):
    checkpoint(tmp_path, 1)
    manifest = tmp_path / "step-00000001.json"
    data = manifest.read_bytes()
    manifest.rename(tmp_path / ".step-00000001.json.5.tmp")
    finishing = [nothing, lambda: manifest.write_bytes(data), lambda: finish(tmp_path, 1, "done")]
    assert order(reported(settings(tmp_path), *finishing)) == [1]


@pytest.mark.parametrize("name", ["step-00000001.json", "step-00000001.model.safetensors"])
def test_a_half_visible_file_gets_time_to_become_whole(tmp_path, name):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    whole = [nothing, nothing, lambda: path.write_bytes(data)]
    assert order(reported(settings(tmp_path), *whole)) == [1]
    path.write_bytes(data[: len(data) // 2])
    (tmp_path / "evaluations.jsonl").unlink()
    (left_out,) = reported(settings(tmp_path, patience_s=3.0), nothing, nothing, nothing)
    assert isinstance(left_out, Missed)
    assert name in left_out.why


def test_a_folder_that_cannot_be_read_is_waited_for(tmp_path, capsys):
    folder, away = tmp_path / "run", tmp_path / "away"
    checkpoint(folder, 1)

    def goes():
        folder.rename(away)
        folder.touch()

    def comes_back():
        folder.unlink()
        away.rename(folder)
        checkpoint(folder, 2)
        finish(folder, 2, "done")

    assert order(reported(settings(folder), goes, nothing, comes_back)) == [1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["storage", "storage"]
    assert "Not a directory; the evaluator tries again" in lines[0]
    assert "can be read again" in lines[1]


@pytest.mark.parametrize(
    ("owner", "call"),
    [(os, "listdir"), (os, "open"), (os, "fstat")],
)
def test_stale_handles_are_tried_again(tmp_path, monkeypatch, owner, call):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    real, stale = getattr(owner, call), iter([True, True, True])

    def sometimes(*args, **named):
        if next(stale, False):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*args, **named)

    monkeypatch.setattr(owner, call, sometimes)
    waits: list[float] = []
    results: list[Evaluation | Missed] = []
    assert evaluate(settings(tmp_path), results.append, wait=waits.append) == 1
    assert waits
    assert order(results) == [1]


# --- when to stop


def test_a_finished_run_whose_last_checkpoint_is_not_listed_yet_gets_time(tmp_path):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 2, "done")
    late = [nothing, lambda: checkpoint(tmp_path, 2)]
    assert order(reported(settings(tmp_path, patience_s=3.0), *late)) == [1, 2]


def test_a_finished_run_without_a_last_checkpoint_ends_after_the_patience(tmp_path):
    checkpoint(tmp_path, 7)
    finish(tmp_path, 9, "interrupted")
    options = settings(tmp_path, patience_s=3.0, eval_freq=5)
    assert order(reported(options, nothing, nothing, nothing)) == [7]


@pytest.mark.parametrize("written", [9, 7])
def test_a_manifest_that_the_run_cannot_have_written_hides_no_last_checkpoint(tmp_path, written):
    checkpoint(tmp_path, written)
    checkpoint(tmp_path, 6)
    for planted in (8, 10**8 + 1, 2**63 + 1):
        (tmp_path / f"step-{planted:08}.json").write_text("{}")
    finish(tmp_path, 9, "done")
    results = reported(settings(tmp_path, eval_freq=4, patience_s=0.0))
    assert order(results) == [-8, written]


def test_follow_goes_on_with_a_continued_run(tmp_path):
    checkpoint(tmp_path, 1)
    finish(tmp_path, 1, "done")
    results = reported(
        settings(tmp_path, follow=True, idle_timeout_s=2.0),
        lambda: unfinish(tmp_path),
        lambda: checkpoint(tmp_path, 2),
        lambda: finish(tmp_path, 2, "done"),
        nothing,
    )
    assert order(results) == [1, 2]


def test_the_idle_timeout_ends_the_wait_for_a_run_that_never_starts(tmp_path):
    options = settings(tmp_path / "absent", idle_timeout_s=2.0, poll_interval_s=0.5)
    assert reported(options, nothing, nothing, nothing, nothing) == []


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
