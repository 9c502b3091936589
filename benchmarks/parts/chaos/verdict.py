"""Comparison of a training with injected faults with a training without faults."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, final

from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.scoring import build_subject, score
from atomo.workloads import make_task
from parts.chaos.calm import Calm, ended
from parts.chaos.faults import FAULTS
from parts.chaos.job import Training, unequal

__all__ = ["Done", "Result", "Stretch", "broken", "closed", "judged", "outside", "stretches"]

NEAR = 0.02  # of the accuracy: the difference between two seeds
POLL_S = 0.05
WHOLE, SURVIVED, PROCESSES = "all", "outside of restarts", "beside faults of processes"


@final
@dataclass(frozen=True)
class Done:
    """An injected fault; times are those of `time.monotonic`."""

    fault: str
    at: float
    overcome: float
    """Time at which the job had recovered and took new steps."""
    cost_s: float
    """The longest time between two steps after the fault, minus the median."""
    restarted: bool
    reported: bool = True
    """True if the training reported the fault, or has no line for this kind of fault."""


@final
@dataclass(frozen=True)
class Stretch:
    """New steps in a part of the time."""

    seconds: float
    steps: int
    steps_without: float
    """Steps of the training without faults in as much time."""

    @property
    def goodput(self) -> float:
        """The ratio of the steps with faults to those without."""
        return self.steps / max(1.0, self.steps_without)


@final
@dataclass(frozen=True)
class Result:
    """Result of a run."""

    seconds: float
    faults: list[Done]
    stretches: dict[str, Stretch]
    """Stretches of the whole run, without the seconds of restarts, and without faults of links and
    disks.
    """
    rates_without: list[float]
    """Steps per second of the training without faults, before and after; empty with --beside."""
    accuracy: float
    accuracy_without: float
    refused: int
    """Refused frames, from metrics.jsonl."""
    wrong: list[str]
    """Failed checks; empty: none."""

    def costs(self, names: Sequence[str], *, restarted: bool) -> list[float]:
        """Returns the sorted costs of faults of these kinds, with or without a restart."""
        faults = [fault for fault in self.faults if fault.restarted is restarted]
        return sorted(fault.cost_s for fault in faults if fault.fault in names)


def closed(training: Training, limit_s: float) -> list[str]:
    """Ends the training; returns the failed checks."""
    return ended("the training", training, limit_s) + broken(training, limit_s)


def judged(
    training: Training,
    calm: Calm,
    span: tuple[float, float],
    done: Sequence[Done],
    wrong: Sequence[str],
) -> Result:
    """Compares the training with the training without faults."""
    problems = [*wrong]
    accuracy, without = accuracy_of(training.folder), accuracy_of(calm.folder)
    if accuracy < without - NEAR:
        problems.append(f"its accuracy is {accuracy:.2%}, and {without:.2%} without faults")
    refused = sum(len(line.get("refused_from", ())) for line in training.metrics())
    return Result(
        span[1] - span[0], [*done], stretches(training, calm, span, done), calm.rates, accuracy,
        without, refused, problems,
    )  # fmt: skip


def stretches(
    training: Training, calm: Calm, span: tuple[float, float], done: Sequence[Done]
) -> dict[str, Stretch]:
    """Returns the new steps of the whole run and of its parts, with and without faults."""
    again = [fault for fault in done if fault.restarted]
    beyond_processes = [
        fault for fault in done if fault.restarted or not FAULTS[fault.fault].of_process
    ]
    parts = {
        WHOLE: [span],
        SURVIVED: outside(span, again),
        PROCESSES: outside(span, beyond_processes),
    }
    return {
        name: Stretch(
            sum(to - since for since, to in spans),
            sum(training.useful(*part) for part in spans),
            calm.steps_in(spans),
        )
        for name, spans in parts.items()
    }


def outside(span: tuple[float, float], done: Sequence[Done]) -> list[tuple[float, float]]:
    """Returns the intervals outside of these faults."""
    parts, since = [], span[0]
    for fault in done:
        parts.append((since, fault.at))
        since = fault.overcome
    return [*parts, (min(since, span[1]), span[1])]


def due_steps(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the numbers that lines of metrics must have: with a master, a line has a round."""
    rounds = bool(lines) and lines[0]["step"] > 1
    return [*accumulate(line["round_steps"] if rounds else 1 for line in lines)]


def broken(training: Training, limit_s: float) -> list[str]:
    """Returns inconsistencies in the folder of a run, and remaining processes."""
    lines = training.metrics()
    steps, problems = [int(line["step"]) for line in lines], list[str]()
    if steps != due_steps(lines):
        problems.append("metrics.jsonl does not have every step or round once")
    if lacking := unequal(lines):
        problems.append(f"gradients are not accounted for at steps {lacking[:5]}")
    if not steps or latest(training.folder) != steps[-1]:
        problems.append(f"the last checkpoint is not that of step {max(steps, default=0)}")
    end = time.monotonic() + limit_s
    while training.ranks() and time.monotonic() < end:
        time.sleep(POLL_S)
    if remaining := training.ranks():
        problems.append(f"ranks {sorted(remaining)} are left")
    return problems


def accuracy_of(folder: Path) -> float:
    """Reads the accuracy of the last checkpoint of a run, on the test images; 0 without a
    checkpoint.
    """
    step = latest(folder) if folder.exists() else None
    if step is None:
        return 0.0
    subject = build_subject(make_task("images"), "LeNet", "Digits", None, folder, "cpu")
    return score(load(folder, step, parts=["model"]), subject, 1000).values["top1"]
