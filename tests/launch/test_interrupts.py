"""No interrupt is lost, whenever it comes."""

import os
import random
import signal
import threading
import time

import pytest
from support.fake_job import MUCH_S, Notes, ended, evaluator, mpirun
from support.harness import settings
from support.selection import slow_but

from atomo.launch import supervisor
from atomo.launch.supervisor import Supervisor

BEYOND_S = 0.7  # at most, of a random moment: before the start, in the training, after it
AGAIN_S = 0.3  # until the second press


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "evaluator_command", lambda chosen: evaluator())


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_one_between_the_end_of_the_training_and_that_of_mpirun_ends_the_evaluator(tmp_path):
    """mpirun takes its time to end, and would pass the signal on to ranks that are gone."""
    notes, gone = Notes(), tmp_path / "gone"

    def press() -> None:
        if notes.trained and "evaluating for ever" in notes.notes and not gone.exists():
            interrupt()
            gone.touch()

    notes.then = press
    assert ended(Supervisor(settings(tmp_path), mpirun(until=gone), notes)) == 130


def test_one_while_the_evaluator_is_being_started_ends_it(tmp_path, monkeypatch):
    """The ranks of a short run have ended before the launcher reads that they have started."""
    notes = Notes()
    job = Supervisor(settings(tmp_path), mpirun(), notes)

    def command(chosen: object) -> list[str]:
        ranks = job._ranks
        assert ranks is not None
        ranks.handle.wait()
        interrupt()
        return evaluator()

    monkeypatch.setattr(supervisor, "evaluator_command", command)
    assert ended(job) == 130


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_but(range(4), range(12)))
def test_one_at_any_moment_ends_the_job_or_a_second_one_does(seed, tmp_path):
    chance = random.Random(seed)
    notes = Notes()
    line = mpirun(steps=8, step_s=0.01, linger_s=chance.uniform(0, 0.2))
    job = Supervisor(settings(tmp_path), line, notes)
    over, sufficed = threading.Event(), []

    def press() -> None:
        time.sleep(chance.uniform(0, BEYOND_S))
        sufficed.append(notes.trained)
        interrupt()
        if not over.wait(MUCH_S if notes.trained and sufficed[0] else AGAIN_S):
            interrupt()

    finger = threading.Thread(target=press)
    previous = signal.signal(signal.SIGINT, lambda number, frame: None)  # before and after the job
    try:
        finger.start()
        code = ended(job)
    finally:
        over.set()
        finger.join()
        signal.signal(signal.SIGINT, previous)
    assert code == 130
