"""A disk that is full ends a run with the promised code, whatever is being written."""

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from atomo.codecs import make_codec
from atomo.errors import CheckpointError
from atomo.fusion import plan, shapes
from atomo.grouping import ONE
from atomo.training.dump import GradientDump
from atomo.training.evaluator import Board
from atomo.training.events import StepDone
from atomo.training.metrics import MetricsLog
from atomo.training.scoring import Evaluation

STEP = StepDone(1, *[1.0] * 4, 1, 1.0, 1, 1, 1, *[1.0] * 8)
ROOM = 500  # bytes of a file: one step and a half


@pytest.fixture
def full() -> Iterator[None]:
    """No file grows beyond some bytes: the system says so as it does of a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_step_that_has_no_room_says_so_and_is_dropped_by_the_next_run(full, tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics\.jsonl: File too large"):
        fill(MetricsLog(tmp_path, 1))
    text = (tmp_path / "metrics.jsonl").read_bytes()
    assert len(text) == ROOM
    assert not text.endswith(b"\n")
    with MetricsLog(tmp_path, 2):
        assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 1


def fill(log: MetricsLog) -> None:
    with log:
        for _ in range(3):
            log.write(STEP)


def test_an_end_that_fails_hides_no_other_error(tmp_path):
    with pytest.raises(ValueError, match="first"):
        fail(MetricsLog(tmp_path, 1))


def fail(log: MetricsLog) -> NoReturn:
    with log:
        os.close(log._file)  # its end will fail as well
        raise ValueError("first")


def test_a_gradient_that_has_no_room_leaves_nothing_behind(full, tmp_path):
    model = torch.nn.Linear(20, 20)
    (bucket,) = plan(shapes(model), make_codec("sgd"), ONE)
    dump = GradientDump(tmp_path / "gradients", 1)
    dump.add(bucket, torch.zeros(bucket.size), 1)
    with pytest.raises(CheckpointError, match=r"cannot write .*000001\.safetensors: File too"):
        dump.finish(1)
    assert not list((tmp_path / "gradients").iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_tensorboard_that_has_no_room_says_so(full, tmp_path):
    before = {*threading.enumerate()}
    with pytest.raises(CheckpointError, match=r"cannot write .*tensorboard.*: File too large"):
        board(tmp_path / "tensorboard")
    for writer in {*threading.enumerate()} - before:
        writer.join()  # it is dying of its error, of which the next test would hear


def board(folder: Path) -> None:
    with Board(folder) as written:
        for step in range(20):
            written.add(Evaluation(step, {"top1": 0.5, "loss": 1.0}, 10, "images"))
