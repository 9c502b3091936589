"""Real jobs in which spares take the places of those that die: with a master at the start and in a
step, without one in a step.
"""

import json
import re

import pytest
from support.jobs import faults, run

from atomo.training.checkpoints.checkpoint import latest, load

pytestmark = pytest.mark.long

LOADING = """
import os, signal
import atomo.training.planner.planner as planner
def planted(settings, ranks):
    os.kill(os.getpid(), signal.SIGKILL)
planner.make_job = planted
"""
STEPPING = """
import os, signal
from atomo.training.loop.worker import Worker
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


REPLICA = """
import os, signal
from atomo.training.loop.replica import TrainingReplica
original = TrainingReplica.take_step
def planted(self, **asks):
    if self.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, **asks)
TrainingReplica.take_step = planted
"""


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_rank_that_dies_without_a_master(tmp_path):
    words = ["train", "--n=3", "--spares=1", "--comm-type=Allgather", "--network=FC"]
    words += ["--batch-size=8", "--threads=1", "--evaluator=none", "--code=qsgd"]
    words += ["--max-steps=6", "--eval-freq=2", "--max-restarts=0", f"--train-dir={tmp_path}/run"]
    environment = faults(tmp_path / "faults", {2: REPLICA})
    code, output = run(words, tmp_path / "log", env=environment)
    assert code == 0, output  # 8 where the hashes of the weights differ, at any checkpoint
    assert "3 workers + 1 spare, Allgather" in output
    assert "rank 3, a spare, takes part from step 4 on" in output
    lines = [*map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())]
    asked = [(line["step"], line["asked"], line["workers"], line["lost"]) for line in lines]
    assert asked == [(n, 3, 3 - lost, lost) for n, lost in enumerate((0, 0, 1, 0, 0, 0), 1)]
    for line in lines:
        assert line["images_asked"] == line["images_used"] + line["images_lost"] == 24, line
    assert len(load(tmp_path / "run", 6).workers) == 3
    assert re.search(r"gradients +.*18: 17 used, 0 late, 1 lost", output), output
