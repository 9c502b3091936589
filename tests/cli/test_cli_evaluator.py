"""The evaluator as a process of its own: before, during and after a real run."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from support.harness import run_threads, settings
from support.jobs import run, started, until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atomo.cli import main
from atomo.training.checkpoints.checkpoint import latest, steps

TRAIN = ["train", "--n=2", "--network=LeNet", "--batch-size=8", "--threads=1", "--code=sgd"]
TRAIN += ["--lr=0.002"]
SHORT = {"n": 2, "network": "LeNet", "batch_size": 8, "code": "sgd", "lr": 0.002}


def evaluate(folder: Path, *words: str) -> list[str]:
    return ["evaluate", "--model-dir", str(folder), "--poll-interval=0.1", "--threads=1", *words]


def evaluated(folder: Path) -> list[int]:
    """Returns the steps in `evaluations.jsonl`, in the order of its lines."""
    path = folder / "evaluations.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["step"] for line in lines]


def scalars(folder: Path) -> list[int]:
    """Returns the steps that TensorBoard shows an accuracy of."""
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return [point.step for point in board.Scalars("test/top1")]


@pytest.mark.long
def test_it_follows_a_run_that_it_was_started_before(tmp_path):
    folder = tmp_path / "runs" / "x"
    words = [*TRAIN, f"--train-dir={folder}", "--evaluator=none", "--max-steps=8", "--eval-freq=2"]
    with started(evaluate(folder), tmp_path / "evaluator") as evaluator:
        code, output = run(words, tmp_path / "run")
        assert code == 0, output
        assert evaluator.ends() == 0, evaluator.output
        told = [line for line in evaluator.output.splitlines() if ": test top-1 " in line]
    assert [line.partition(":")[0] for line in told] == ["step 2", "step 4", "step 6", "step 8"]
    assert evaluated(folder) == steps(folder) == [2, 4, 6, 8]
    assert scalars(folder) == [2, 4, 6, 8]
    (folder / "evaluations.jsonl").unlink()
    with started(evaluate(folder, "--follow=yes"), tmp_path / "follower") as evaluator:
        evaluator.says("step 8: test top-1")
        evaluator.process.send_signal(signal.SIGINT)
        assert evaluator.ends() == 130
        assert "Traceback" not in evaluator.output


@pytest.mark.long
@pytest.mark.slow
def test_killed_and_started_again_it_evaluates_nothing_twice(capfd, tmp_path):
    folder = tmp_path / "run"
    run_threads(settings(folder, **SHORT, eval_freq=4, max_steps=40))
    with started(evaluate(folder), tmp_path / "one") as evaluator:
        until(lambda: evaluated(folder), "an evaluation")
        os.kill(evaluator.process.pid, signal.SIGKILL)
        assert evaluator.ends() == -signal.SIGKILL
    before = (folder / "evaluations.jsonl").read_bytes()
    assert main(evaluate(folder)) == 0
    assert (folder / "evaluations.jsonl").read_bytes().startswith(before.rpartition(b"\n")[0])
    assert evaluated(folder) == steps(folder) == [*range(4, 41, 4)]
    capfd.readouterr()
    assert main(evaluate(folder)) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.slow
def test_a_run_brings_its_own_which_goes_on_where_another_has_ended(tmp_path):
    run_threads(settings(tmp_path / "run", **SHORT, eval_freq=3, max_steps=4))
    assert main(evaluate(tmp_path / "run")) == 0
    assert evaluated(tmp_path / "run") == [3, 4]
    words = [*TRAIN, f"--train-dir={tmp_path / 'run'}", "--eval-freq=3"]
    code, output = run([*words, "--max-steps=7"], tmp_path / "log")
    assert code == 0, output
    assert "continued at step 5" in output
    assert "final test accuracy" in output
    assert evaluated(tmp_path / "run") == [3, 4, 6, 7]


@pytest.mark.slow
def test_it_may_evaluate_only_some_checkpoints_and_says_what_it_cannot_do(capfd, tmp_path):
    folder = tmp_path / "run"
    run_threads(settings(folder, **SHORT, eval_freq=1, max_steps=7))
    assert latest(folder) == 7
    for wrong in ("--network=FC", "--dataset=MNIST"):
        assert main(evaluate(folder, wrong)) == 2
        told = capfd.readouterr().err
        assert f"{wrong.replace('=', ' ')} contradicts the checkpoint, which was trained" in told
        assert told.count("\n") == 1
    for wrong in ("--eval-batch-size=0", "--poll-interval=0", "--idle-timeout=-1", "--threads=-1"):
        assert main(evaluate(folder, wrong)) == 2
        assert f"atomo evaluate: {wrong.partition('=')[0]} must be" in capfd.readouterr().err
    assert main(evaluate(folder, "--image-size=9")) == 2
    assert "--image-size 9: Digits comes in 32x32 only" in capfd.readouterr().err
    assert not evaluated(folder)
    assert main(evaluate(folder, "--eval-freq=3")) == 0
    assert evaluated(folder) == [3, 6, 7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a CUDA device")
def test_a_gpu_that_is_not_there_is_missed(capfd, tmp_path):
    assert main(evaluate(tmp_path, "--enable-gpu=yes")) == 2
    assert "cannot use device 'cuda'" in capfd.readouterr().err


@pytest.mark.slow
def test_a_missing_data_set_is_named(capfd, tmp_path):
    folder = tmp_path / "run"
    run_threads(settings(folder, **SHORT, max_steps=1))
    manifest = folder / "step-00000001.json"
    manifest.write_text(manifest.read_text().replace('"Digits"', '"MNIST"'))
    assert main(evaluate(folder, f"--data-dir={tmp_path}")) == 3
    told = capfd.readouterr().err
    assert told.startswith(f"atomo evaluate: MNIST is not in {tmp_path}")
    assert told.count("\n") == 1
