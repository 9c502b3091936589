"""A process that was killed or stopped from outside is named, with advice."""

import os
import signal
import sys

import pytest
from support.fake_job import Notes, ended, evaluator, mpirun
from support.harness import settings
from support.jobs import alive, until

from atomo.launch import supervisor
from atomo.launch.jobs.streams import EVENT_MARK
from atomo.launch.supervisor import Supervisor
from atomo.training.job.events import Fence, to_json


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "LOOK_S", 0.05)
    monkeypatch.setattr(supervisor, "evaluator_command", lambda chosen: evaluator())


@pytest.fixture
def notes() -> Notes:
    return Notes()


def at(notes: Notes, text: str, job: Supervisor, process: str, number: int) -> None:
    """Sends a signal to one of the processes of a job as soon as a line was shown."""

    def send() -> None:
        if notes.notes[-1:] == [text]:
            os.kill(getattr(job, process).handle.pid, number)

    notes.then = send


ENDLESS = 10**9  # steps


def test_a_killed_mpirun(notes, tmp_path):
    line = mpirun(steps=ENDLESS, step_s=0.01)
    job = Supervisor(settings(tmp_path, evaluator="none"), line, notes)
    at(notes, "step 1", job, "_ranks", signal.SIGKILL)
    assert ended(job) == 5
    assert "mpirun was killed by signal 9 (Killed)" in notes.notes[-1]
    assert "continues from the last checkpoint" in notes.notes[-1]


def test_a_job_that_is_gone_before_its_end_has_failed_whatever_mpirun_says(notes, tmp_path):
    silent = [sys.executable, "-S", "-c", "print('begun', flush=True)"]
    job = Supervisor(settings(tmp_path, evaluator="none"), silent, notes)
    assert ended(job) == 5
    assert notes.notes == [
        "begun",
        "atomo: the processes of the job ended before the training did",
    ]


def test_a_rank_of_another_host_that_does_not_answer_is_passed_on(notes, tmp_path):
    silent, asked = Fence(2, 4711, 99, False), []
    said = f"print({EVENT_MARK + to_json(silent)!r}, flush=True)"
    line = [sys.executable, "-S", "-c", said]
    assert ended(Supervisor(settings(tmp_path), line, notes, fence=asked.append)) == 5
    assert asked == [silent]


def test_a_killed_evaluator_is_named_at_once_and_the_training_goes_on(notes, tmp_path):
    gone = tmp_path / "gone"
    job = Supervisor(settings(tmp_path), mpirun(until=gone), notes)

    def act() -> None:
        if notes.notes[-1:] == ["evaluating for ever"]:
            os.kill(job._evaluator.handle.pid, signal.SIGKILL)
        elif any("evaluator was killed by signal 9" in note for note in notes.notes):
            gone.touch()  # not before: mpirun outlives its evaluator

    notes.then = act
    assert ended(job) == 0  # 5 would start the whole job again
    assert any(f"`atomo evaluate --model-dir {tmp_path}`" in note for note in notes.notes)
    assert notes.trained


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("raise SystemExit(4)", "the evaluator ended with exit code 4; the training does not need"),
        ("import os; os.kill(os.getpid(), 2)", "the evaluator was killed by signal 2 (Interrupt)"),
        ("import os; os.kill(os.getpid(), 15)", "the evaluator was killed by signal 15"),
    ],
)
def test_however_an_evaluator_ends_the_run_ends_as_it_would_without(
    end, told, notes, tmp_path, monkeypatch
):
    failing = [sys.executable, "-S", "-c", end]
    monkeypatch.setattr(supervisor, "evaluator_command", lambda chosen: failing)
    assert ended(Supervisor(settings(tmp_path), mpirun(), notes)) == 0
    (line,) = (note for note in notes.notes if note.startswith("atomo: the evaluator"))
    assert told in line
    assert f"`atomo evaluate --model-dir {tmp_path}`" in line


@pytest.mark.slow(cases=("_evaluator",))
@pytest.mark.parametrize(("process", "code"), [("_ranks", 5), ("_evaluator", 0)])
def test_a_stopped_process_is_killed_when_its_time_is_up(process, code, notes, tmp_path):
    line = mpirun(steps=ENDLESS, step_s=0.01) if process == "_ranks" else mpirun()
    job = Supervisor(settings(tmp_path, timeout=0.3), line, notes)
    at(notes, "evaluating for ever", job, process, signal.SIGSTOP)
    assert ended(job) == code
    told = notes.notes[-1]
    assert "was stopped (SIGSTOP) for 0.3 s, the --timeout, and is killed" in told
    assert ("mpirun" if process == "_ranks" else "the evaluator") in told
    assert not alive(getattr(job, process).handle.pid)


def test_one_that_is_continued_in_time_goes_on(notes, tmp_path):
    gone = tmp_path / "gone"
    job = Supervisor(settings(tmp_path, evaluator="none"), mpirun(until=gone), notes)

    def stop_then_continue() -> None:
        if notes.trained and not gone.exists():
            os.kill(job._ranks.handle.pid, signal.SIGSTOP)
            until(job._ranks.stopped, "it to stop")
            gone.touch()
            os.kill(job._ranks.handle.pid, signal.SIGCONT)

    notes.then = stop_then_continue
    assert ended(job) == 0
    assert gone.exists()
