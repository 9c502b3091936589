"""The verdict on a night: its training compared with an undisturbed training."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from support.jobs import Job

__all__ = ["Verdict", "compare_with", "judged", "undisturbed"]

NEAR = 0.01  # of the accuracy: three or four of 360 images
AGAIN = "hosts are there again"  # the supervisor's text about a replacement


class NightSource(Protocol):
    """The source of events of the hosts."""

    master: str
    checkout: str

    def events(self) -> list[dict[str, str]]: ...
    def on(self, host: str, command: str) -> str: ...


@dataclass(frozen=True)
class Verdict:
    """A verdict, and its lines of explanation."""

    through: bool
    lines: tuple[str, ...]


def undisturbed(folder: Path, words: Sequence[str], processes: int) -> Job:
    """Starts the same training on this machine alone, at low priority."""
    folder.mkdir()
    line = [sys.executable, "-m", "atomo", "train", *words, f"--n={processes}"]
    return Job(["nice", "-n", "10", *line, f"--train-dir={folder / 'run'}"], folder / "log")


def compare_with(
    night: NightSource, calm: Job, folder: Path, lost: Sequence[str], steps: int
) -> Verdict:
    """Waits for the undisturbed training, and compares."""
    code = calm.ends()
    assert not code, f"the undisturbed training ended with {code}: {calm.output[-2000:]}"
    run = f"~/{night.checkout}/runs/job-*"
    names = ("metrics.jsonl", "evaluations.jsonl")
    here = [records((folder / "run" / name).read_text()) for name in names]
    folders = night.on(night.master, f"ls -d {run}").split()
    assert len(folders) == 1, f"the job began anew in another folder: {folders}"
    there = [records(night.on(night.master, f"cat {run}/{name}")) for name in names]
    return judged(night.events(), lost, (there[0], there[1]), (here[0], here[1]), steps)


Records = list[dict[str, Any]]


def judged(
    events: Sequence[dict[str, str]], lost: Sequence[str], night: tuple[Records, Records],
    calm: tuple[Records, Records], steps: int,
) -> Verdict:  # fmt: skip
    """Returns the verdict on steps and evaluations of a night and of a training without one."""
    taken = [one["step"] for one in night[0] if one["event"] == "StepDone"]
    ends = [{one["step"]: one for one in evaluated}.get(steps) for _, evaluated in (night, calm)]
    again = [one for one in events if AGAIN in one["text"]]
    first = {kind: one for one in reversed(events) for kind in [one["kind"]]}
    wrong = [
        *([] if len(again) >= len(lost) else [f"{len(again)} replacements of {len(lost)}"]),
        *([] if taken == [*range(1, steps + 1)] else ["not every step was taken once"]),
        *([] if all(ends) else ["the last step was not evaluated"]),
    ]
    lines = [
        f"{len(again)} of {len(lost)} lost workers were replaced, the last one "
        f"{minutes(first['started'], (again or events)[-1]):.1f} minutes after the start",
        f"{len(taken)} steps of {steps}, done {minutes(first['started'], first['done']):.1f} "
        "minutes after it",
    ]
    if ends[0] and ends[1]:
        here, there = ends[0]["top1"], ends[1]["top1"]
        wrong += [] if here >= there - NEAR else ["another accuracy"]
        bits = "" if night[0][-1]["loss"] != calm[0][-1]["loss"] else "; its loss has the same bits"
        lines.append(f"accuracy {here:.2%}, of the same training undisturbed {there:.2%}{bits}")
    verdict = f"it did not come through: {'; '.join(wrong)}" if wrong else "the job came through"
    return Verdict(not wrong, (*lines, f"verdict: {verdict}"))


def minutes(since: dict[str, str], until: dict[str, str]) -> float:
    """Between two events."""
    begin, end = (datetime.fromisoformat(one["when"]) for one in (since, until))
    return (end - begin).total_seconds() / 60


def records(text: str) -> Records:
    """Returns the records of a file of JSON lines."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]
