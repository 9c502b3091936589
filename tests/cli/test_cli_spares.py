"""A real job in which spares take the places of workers that die, at its start and in a step."""

import json
import re

import pytest
from jobs import faults, run

from atomo.training.checkpoint import latest

LOADING = """
import os, signal
import atomo.training.rank as rank
def planted(settings, ranks):
    os.kill(os.getpid(), signal.SIGKILL)
rank.make_job = planted
"""
STEPPING = """
import os, signal
from atomo.training.worker import Worker
original = Worker._take_step
def planted(self, step, *times):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, step, *times)
Worker._take_step = planted
"""


@pytest.mark.slow
def test_spares_take_the_places_of_workers_that_die_at_the_start_and_in_a_step(tmp_path):
    words = ["train", "--n=3", "--spares=2", "--network=ResNet20", "--batch-size=8", "--threads=1"]
    words += ["--evaluator=none", "--log-interval=1", "--code=sgd", "--down=updates"]
    words += ["--max-steps=6", "--eval-freq=3", "--max-restarts=0", f"--train-dir={tmp_path}/run"]
    environment = faults(tmp_path / "faults", {1: LOADING, 2: STEPPING})
    code, output = run(words, tmp_path / "log", env=environment)
    assert code == 0, output
    assert "1 master + 2 workers + 2 spares" in output
    assert re.findall(r"worker (\d), a spare, takes part", output) == ["3", "4"], output
    assert "other weights" not in output
    assert latest(tmp_path / "run") == 6
    lines = [*map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["workers"] for line in lines[2:4]] == [1, 2]
    for line in lines:
        assert line["asked"] == line["workers"] + line["lost"], line
        assert line["images_asked"] == line["images_used"] + line["images_lost"], line
    assert sum(line["lost"] for line in lines) in (
        1,
        2,
    )  # one, if the first death was known by then
