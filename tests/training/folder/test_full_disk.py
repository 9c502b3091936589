"""A full disk that has room again later: steps go on, and writes wait."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from atomo.codecs import make_codec
from atomo.errors import CheckpointError
from atomo.fusion import plan, shapes
from atomo.options.grouping import ONE
from atomo.training.evaluation.scoring import Evaluation
from atomo.training.evaluation.tensorboard_writer import TensorBoardWriter
from atomo.training.job.events import StepDone, Storage
from atomo.training.records import metrics
from atomo.training.records.metrics import MetricsLog
from atomo.training.records.retrying_writer import RetryingWriter
from atomo.training.step.gradient_dump import GradientDump

STEP = StepDone(1, *[1.0] * 4, 1, 1.0, 1, 1, 1, *[1.0] * 8)
ROOM = 800  # bytes of a file: one step and a half


@pytest.fixture
def full() -> Iterator[None]:
    """No file grows beyond some bytes: the system says so as it does of a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_steps_that_have_no_room_wait_for_it(full, tmp_path):
    events: list[Storage] = []
    clock = Clock()
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(tmp_path, 1, RetryingWriter("metrics", events.append, clock)) as log:
        for step in (1, 2, 3):
            log.write(replace(STEP, step=step))
        assert len(path.read_bytes()) == ROOM  # one is torn
        assert [record.works for record in events] == [False]
        assert "metrics.jsonl: File too large" in events[0].text
        make_room()
        log.write(replace(STEP, step=4))
        assert len(events) == 1  # too soon
        clock.now += 1.0
        log.write(replace(STEP, step=5))
    assert [record.works for record in events] == [False, True]
    assert written(path) == [1, 2, 3, 4, 5]


def test_a_log_that_was_removed_is_made_anew(tmp_path):
    with MetricsLog(tmp_path, 1) as log:
        log.write(STEP)
        log.path.unlink()
        log.write(replace(STEP, step=2))
        assert written(log.path) == [2]


def test_more_steps_than_can_wait_are_counted(full, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "MOST", 2)
    log = MetricsLog(tmp_path, 1, RetryingWriter("metrics", lambda event: None, Clock()))
    for step in (1, 2, 3, 4):  # the first is written
        log.write(replace(STEP, step=step))
    make_room()
    with pytest.raises(CheckpointError, match="lacks 1 steps: more than 2 could not be written"):
        log.__exit__(None, None, None)
    assert written(log.path) == [1, 3, 4]


def test_steps_that_never_have_room_end_the_run_with_an_error(full, tmp_path):
    log = MetricsLog(tmp_path, 1)
    for step in (1, 2):
        log.write(replace(STEP, step=step))
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl: File too"):
        log.__exit__(None, None, None)


def make_room() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def written(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_end_that_fails_hides_no_other_error(tmp_path):
    with pytest.raises(ValueError, match="first"):
        fail(MetricsLog(tmp_path, 1))


def fail(log: MetricsLog) -> NoReturn:
    with log:
        os.close(log._file)  # its end will fail as well
        raise ValueError("first")


def test_a_gradient_that_has_no_room_leaves_nothing_behind(full, tmp_path, capsys):
    model = torch.nn.Linear(20, 20)
    (bucket,) = plan(shapes(model), make_codec("sgd"), ONE)
    dump = GradientDump(tmp_path / "gradients", 1)
    dump.add(bucket, torch.zeros(bucket.size), 1)
    dump.finish(1)
    assert not list((tmp_path / "gradients").iterdir())
    assert "000001.safetensors: File too large" in capsys.readouterr().err
    make_room()
    dump.add(bucket, torch.zeros(bucket.size), 2)
    dump.finish(2)
    assert [path.name for path in (tmp_path / "gradients").iterdir()] == [
        "step-00000002.safetensors"
    ]
    assert "gradients can be written again" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_tensorboard_that_has_no_room_says_so(full, tmp_path):
    before = {*threading.enumerate()}
    with pytest.raises(CheckpointError, match=r"cannot write .*tensorboard.*: File too large"):
        board(tmp_path / "tensorboard")
    for writer in {*threading.enumerate()} - before:
        writer.join()  # it is dying of its error, of which the next test would hear


def board(folder: Path) -> None:
    with TensorBoardWriter(folder) as written:
        for step in range(20):
            written.add(Evaluation(step, {"top1": 0.5, "loss": 1.0}, 10, "images"))
