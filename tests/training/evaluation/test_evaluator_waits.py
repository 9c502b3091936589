"""An evaluator on a shared folder: late, stale and missing files, and the end of its wait."""

import errno
import os

import pytest
from support.evaluations import (
    Scripted,
    checkpoint,
    log,
    nothing,
    order,
    reported,
    settings,
    small,
)

from atomo.training.checkpoints.checkpoint import finish, unfinish
from atomo.training.evaluation import evaluator
from atomo.training.evaluation.evaluator import Evaluation, Missed, evaluate

__all__ = ["small"]  # a fixture

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
