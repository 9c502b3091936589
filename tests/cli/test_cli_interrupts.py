"""Ctrl-C where the first one cannot help, and where there is nothing left to train."""

import signal

import pytest
from support.jobs import faults, started, until

from atomo.training.checkpoints.checkpoint import finished, latest

pytestmark = pytest.mark.slow

TRAIN = ["train", "--n=2", "--network=LeNet", "--batch-size=8", "--threads=1", "--code=sgd"]
TRAIN += ["--lr=0.002", "--log-interval=1"]
STUCK = """
import sys, threading
from atomo.training.loop.worker import Worker
original = Worker._take_step
def planted(self, step, *times):
    if step == 3:
        sys.stderr.write("stuck\\n")
        threading.Event().wait()
    original(self, step, *times)
Worker._take_step = planted
"""
SLOW_EVALUATOR = """
import sys
if "evaluate" in sys.orig_argv:
    import threading
    import atomo.training.evaluation.evaluator as evaluator
    def planted(*_):
        sys.stderr.write("evaluating for ever\\n")
        threading.Event().wait()
    evaluator.score = planted
"""


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    words = [*TRAIN, f"--train-dir={tmp_path / 'run'}", "--eval-freq=2"]
    environment = faults(tmp_path / "faults", {1: STUCK})
    with started(words, tmp_path / "log", env=environment) as job:
        job.says("stuck")
        job.process.send_signal(signal.SIGINT)
        job.says("interrupted: finishing the step and writing a checkpoint ...")
        job.process.send_signal(signal.SIGINT)
        assert job.ends() == 130
        until(lambda: not job.family(), "every process to end")
        assert "Traceback" not in job.output
    assert latest(tmp_path / "run") == 2
    assert finished(tmp_path / "run") is None


@pytest.mark.long
def test_a_ctrl_c_after_the_training_ends_the_evaluator(tmp_path):
    environment = faults(tmp_path / "faults", {})
    (tmp_path / "faults" / "sitecustomize.py").write_text(SLOW_EVALUATOR)
    words = [*TRAIN, f"--train-dir={tmp_path / 'run'}", "--max-steps=3"]
    with started(words, tmp_path / "log", env=environment) as job:
        job.says("training ended at step 3: done")
        job.says("evaluating for ever")
        job.process.send_signal(signal.SIGINT)
        assert job.ends() == 130
        until(lambda: not job.family(), "every process to end")
        assert "Traceback" not in job.output
    assert latest(tmp_path / "run") == 3


def test_nothing_outlives_a_killed_launcher(tmp_path):
    words = [*TRAIN, f"--train-dir={tmp_path / 'run'}", "--epochs=1000", "--eval-freq=50"]
    with started(words, tmp_path / "log") as job:
        job.says("test top-1")
        job.process.kill()
        job.ends()
        until(lambda: not job.family(), "every process to end")
    assert latest(tmp_path / "run") is not None
