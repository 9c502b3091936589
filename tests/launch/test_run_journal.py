"""The journal of a job: what it writes, and that it harms no run."""

import json
import threading
from dataclasses import replace

import pytest
from support.run_folders import parse_page, write_run

from atomo.config.settings import Settings
from atomo.launch import run_journal
from atomo.launch.run_journal import journal_of
from atomo.launch.studies.quiet_jobs import QuietDisplay
from atomo.training.job.events import Caution, Ended, RankTimes, Saved, Started, StepDone

STARTED = Started("LeNet", "Digits", "svd", "residual", 2, 10, 20, 5, 1, 20, "x")
TIMES = RankTimes(20, [1, 2], [0.1, 0.3], [0.0, 0.1], [0.0, 0.0], [0.2, 0.0], [0.0, 0.0])


def settings_of(folder, report=True):
    return replace(Settings(), train_dir=str(folder), report=report)


def records(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_job_leaves_its_messages_and_a_page_with_them(tmp_path, capsys):
    folder = write_run(tmp_path / "x")
    with journal_of(settings_of(folder), QuietDisplay()) as (display, codes):
        display.note("early")
        for event in (STARTED, Caution("too <fast>"), Saved(5, "x"), TIMES, Ended(20, "done")):
            display.show(event)
        display.note("late\x1b[31m")
        codes.append(0)
    assert [record["event"] for record in records(folder)] == [
        "Launched", "Note", "Started", "Caution", "RankTimes", "Ended", "Note", "Exited"
    ]  # fmt: skip
    assert all(record["at"] > 1e9 for record in records(folder))
    text = parse_page((folder / "report.html").read_text()).text
    assert "Caution: too <fast>" in text
    assert "late\\x1b[31m" in text
    assert "exit code 0" in text
    assert "Rank 2 computed and encoded longest: 400 ms a step" in text
    assert "Mean time of the parts of a step by rank" in text
    assert "torch 2" in text
    assert "caution: too <fast>" in capsys.readouterr().err  # the display has it as before


def test_a_job_that_never_began_changes_nothing(tmp_path):
    with journal_of(settings_of(tmp_path), QuietDisplay()) as (display, codes):
        display.note("no such host")
        codes.append(2)
    assert not list(tmp_path.iterdir())


def test_the_error_of_a_failed_job_is_in_the_verdict(tmp_path):
    folder = write_run(tmp_path / "x", end="")
    with journal_of(settings_of(folder), QuietDisplay()) as (display, codes):
        display.show(STARTED)
        display.note("atomo: rank 1 (worker), step 7: the loss is nan")
        codes.append(6)
    text = parse_page((folder / "report.html").read_text()).text
    assert "Ended early, with exit code 6, after 20 steps" in text
    assert "rank 1 (worker), step 7: the loss is nan" in text.partition("Learning")[0]


def test_no_report_is_none(tmp_path):
    own = QuietDisplay()
    with journal_of(settings_of(tmp_path, report=False), own) as (display, _):
        assert display is own
        display.show(STARTED)
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_job_is_the_same_with_a_journal(tmp_path):
    write_run(tmp_path)

    def interrupted_job() -> None:
        with journal_of(settings_of(tmp_path), QuietDisplay()) as (display, _):
            display.show(STARTED)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_job()
    assert records(tmp_path)[-1]["exit_code"] is None
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["append_line", "write_report"])
def test_a_defect_or_a_full_disk_harms_no_job(tmp_path, name, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    write_run(tmp_path)
    monkeypatch.setattr(run_journal, name, fail)
    with journal_of(settings_of(tmp_path), QuietDisplay()) as (display, codes):
        display.show(STARTED)
        codes.append(0)
    assert (tmp_path / "report.html").exists() == (name == "append_line")
    assert (tmp_path / "events.jsonl").exists() == (name == "write_report")


def test_a_file_server_that_hangs_delays_a_job_a_bounded_time(tmp_path, monkeypatch):
    write_run(tmp_path)
    answers = threading.Event()
    monkeypatch.setattr(run_journal, "append_line", lambda *_: answers.wait())
    monkeypatch.setattr(run_journal, "PATIENCE_S", 0.01)
    with journal_of(settings_of(tmp_path), QuietDisplay()) as (display, codes):
        display.show(STARTED)
        for _ in range(100):
            display.note("a line")
        codes.append(0)
    assert not (tmp_path / "report.html").exists()
    answers.set()


def test_messages_without_end_are_bounded(tmp_path, monkeypatch):
    write_run(tmp_path)
    monkeypatch.setattr(run_journal, "MOST", 10)
    with journal_of(settings_of(tmp_path), QuietDisplay()) as (display, _):
        display.show(STARTED)
        for _ in range(50):
            display.note("x" * 100_000)
    assert len(records(tmp_path)) == 10
    assert (tmp_path / "events.jsonl").stat().st_size < 30_000


def test_steps_are_in_metrics_alone(tmp_path):
    write_run(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    step = StepDone(**{k: v for k, v in json.loads(lines[0]).items() if k != "event"})
    recorder = QuietDisplay()
    with journal_of(settings_of(tmp_path), recorder) as (display, _):
        display.show(STARTED)
        display.show(step)
    assert recorder.steps == [step]
    assert "StepDone" not in (tmp_path / "events.jsonl").read_text()
