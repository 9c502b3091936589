"""Restarts of a job that lost processes; failures that another attempt cannot fix are
not retried.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_job import Notes
from support.harness import settings

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.display.summary import Summary
from atomo.launch.restarts import run_with_restarts
from atomo.training.checkpoints.manifest import manifest_name

without: list[frozenset[str]] = []  # the hosts that each attempt left out


class FakeAttempt:
    """A job that takes some steps and ends with some code."""

    def __init__(self, summary: Summary, steps: int, code: int, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self._summary, self._steps, self._code = summary, steps, code

    def run(self) -> int:
        self._summary.steps += self._steps
        return self._code


def run_attempts(
    chosen: Settings, *jobs: tuple[int, int], interrupted: bool = False, lost=frozenset
):
    """Returns the exit code, the notes, and the settings of each attempt."""
    summary, notes, started = Summary(), Notes(), []
    without.clear()
    left = iter(jobs)

    def attempt(given: Settings, away: frozenset[str]) -> FakeAttempt:
        if "no room" in away:
            raise ConfigError("no room")
        started.append(given)
        without.append(away)
        return FakeAttempt(summary, *next(left), interrupted)

    code = run_with_restarts(chosen, attempt, summary, notes, lost)  # type: ignore[arg-type]
    return code, notes.notes, started


@pytest.mark.parametrize("code", [5, 9])
def test_a_job_that_lost_processes_goes_on_from_its_newest_checkpoint(code, tmp_path):
    (tmp_path / manifest_name(40)).touch()
    (tmp_path / manifest_name(20)).touch()
    chosen = replace(settings(tmp_path), resume="never")
    ended, notes, started = run_attempts(chosen, (7, code), (9, 0))
    assert ended == 0
    assert notes == ["atomo: restart 1 of 3, from the checkpoint of step 40"]
    assert [one.resume for one in started] == ["never", "auto"]


def test_without_a_checkpoint_it_begins_where_it_began(tmp_path):
    chosen = replace(settings(tmp_path), resume=str(tmp_path / "other"))
    ended, notes, started = run_attempts(chosen, (3, 5), (3, 0))
    assert (ended, len(notes)) == (0, 1)
    assert notes[0].endswith("from the beginning")
    assert [Path(one.resume).name for one in started] == ["other", "other"]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 6, 7, 8, 130])
def test_what_would_come_to_the_same_end_is_not_tried_again(code, tmp_path):
    assert run_attempts(settings(tmp_path), (3, code)) == (code, [], [settings(tmp_path)])


def test_who_was_interrupted_wants_no_other_attempt(tmp_path):
    assert run_attempts(settings(tmp_path), (3, 5), interrupted=True)[0] == 5


def test_restarts_are_counted_and_one_without_a_step_is_the_last(tmp_path):
    code, notes, started = run_attempts(settings(tmp_path), (3, 5), (1, 9), (1, 5), (1, 5))
    assert (code, len(notes), len(started)) == (5, 3, 4)
    code, notes, started = run_attempts(settings(tmp_path), (3, 5), (0, 5))
    assert (code, len(started)) == (5, 2)
    assert "took no step" in notes[-1]
    never = replace(settings(tmp_path), max_restarts=0)
    assert run_attempts(never, (3, 5)) == (5, [], [never])


def test_hosts_that_are_lost_are_left_out_until_they_are_back(tmp_path):
    told = iter([{"b"}, {"b", "c"}, set()])
    ended, notes, _ = run_attempts(
        settings(tmp_path), (3, 5), (0, 5), (1, 5), (1, 0), lost=lambda: frozenset(next(told))
    )
    assert ended == 0  # the second took no step, but the third had other hosts
    assert without == [set(), {"b"}, {"b", "c"}, set()]
    assert [note.partition("; ")[2] for note in notes] == [
        "without b, which did not answer", "without b, c, which did not answer", ""
    ]  # fmt: skip
    code, notes, started = run_attempts(
        settings(tmp_path), (3, 5), lost=lambda: frozenset(["no room"])
    )
    assert (code, len(started), notes[-1]) == (5, 1, "atomo: not started again: no room")
