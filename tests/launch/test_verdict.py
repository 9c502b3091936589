"""Exit codes state the true outcome of a run, with any exit code of mpirun."""

import sys
from dataclasses import replace

import pytest
from support.fake_job import STARTED, Notes, ended
from support.harness import settings

from atomo.cli import main
from atomo.launch import verdict
from atomo.launch.exit_messages import FAREWELL, WITHOUT_END, lost_after_end_text
from atomo.launch.jobs.streams import EVENT_MARK
from atomo.launch.restarts import WORTH
from atomo.launch.supervisor import Supervisor
from atomo.launch.verdict import TRANSIENT, Observations, training_exit_code
from atomo.training.job.events import Ended, Failed, Met, to_json

BEFORE = Observations(
    failed=None,
    ended=False,
    met=False,
    complained=False,
    ended_by_launcher=False,
    overdue=False,
    mpi_args="",
)
TRAINING = replace(BEFORE, met=True)
OVER = replace(TRAINING, ended=True)
FOREIGN = [3, 4, 6, 7, 8, 9, 14, 68]  # codes that no rank has said


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "file_limit", lambda: None)


def exit_code_of(events: list[object], code: int, notes: Notes, tmp_path) -> int:
    """Returns the launcher's exit code of a job that says these events, whose mpirun ends with
    `code`.
    """
    output = "".join(f"{EVENT_MARK}{to_json(event)}\n" for event in events)  # type: ignore[arg-type]
    source = f"import sys; print({output!r}, end='', flush=True); sys.exit({code})"
    line = [sys.executable, "-S", "-c", source]
    return ended(Supervisor(settings(tmp_path, evaluator="none"), line, notes))


@pytest.mark.parametrize("code", [5, 9, 14, 139, 143])
def test_a_loss_after_the_end_of_a_run_is_no_failure(code, tmp_path):
    notes = Notes()
    assert exit_code_of([Met(), STARTED, Ended(3, "done")], code, notes, tmp_path) == 0
    assert notes.notes[-1] == (FAREWELL if code == 14 else lost_after_end_text(code))


def test_nor_is_a_rank_that_says_so_after_the_end(tmp_path):
    notes = Notes()
    assert exit_code_of([Met(), STARTED, Ended(3, "done"), Failed(5)], 5, notes, tmp_path) == 0
    assert notes.notes[-1] == lost_after_end_text(5)


def test_weights_that_differ_are_a_failure_at_any_time():
    assert training_exit_code(0, replace(OVER, failed=8)) == (8, "")


@pytest.mark.parametrize("code", FOREIGN)
def test_a_code_of_some_process_is_no_claim_of_ours(code, tmp_path):
    notes = Notes()
    assert exit_code_of([Met(), STARTED], code, notes, tmp_path) == 5
    assert notes.notes[-1] == WITHOUT_END
    assert training_exit_code(code, BEFORE) == (5, WITHOUT_END)


@pytest.mark.parametrize("code", [2, *FOREIGN])
def test_a_code_that_a_rank_has_said_is(code):
    assert training_exit_code(1, replace(TRAINING, failed=code)) == (code, "")
    assert training_exit_code(code, replace(TRAINING, complained=True)) == (code, "")


@pytest.mark.parametrize("code", [183, 213, 243, 250])
def test_an_mpirun_that_refuses_its_arguments_is_an_error_of_settings(code, tmp_path):
    notes = Notes()
    assert exit_code_of([], code, notes, tmp_path) == 2
    (printed,) = notes.notes
    assert f"mpirun ended with exit code {code} before it started a rank" in printed


def test_an_mpirun_that_could_not_start_by_chance_is_started_again(tmp_path):
    source = f"import sys; print({TRANSIENT + '. We cannot'!r}, flush=True); sys.exit(213)"
    line = [sys.executable, "-S", "-c", source]
    notes = Notes()
    assert ended(Supervisor(settings(tmp_path, evaluator="none"), line, notes)) == 5
    assert notes.notes == [f"{TRANSIENT}. We cannot"]
    assert 5 in WORTH


@pytest.mark.parametrize("code", [1, 137, 255])
def test_a_daemon_or_a_rank_that_is_lost_early_is_none(code):
    assert training_exit_code(code, BEFORE) == (code, "")
    assert training_exit_code(213, TRAINING) == (213, "")
    assert training_exit_code(213, replace(BEFORE, ended_by_launcher=True)) == (213, "")


@pytest.mark.parametrize("code", [1, 14, 255])
def test_ranks_without_room_for_the_files_of_mpi_are_a_failure_of_storage(code, monkeypatch):
    monkeypatch.setattr(verdict, "file_limit", lambda: 51_200)
    exit_code, printed = training_exit_code(code, BEFORE)
    assert exit_code == 4
    assert "no file may have more than 51,200 bytes here (ulimit -f)" in printed
    assert training_exit_code(5, TRAINING) == (5, "")


def test_an_mpirun_that_died_of_too_large_a_file_too(monkeypatch):
    assert training_exit_code(128 + 25, BEFORE) == (4, "")


def test_refused_arguments_are_told_once_in_the_words_of_mpirun(capfd, tmp_path):
    words = ["--mpi-args=--bogus", "--evaluator=none", f"--train-dir={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    printed = capfd.readouterr().out
    assert printed.count("Option: --bogus") == 1
    assert "check the hosts and --mpi-args '--bogus'" in printed
    assert "restart" not in printed
