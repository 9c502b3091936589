"""Comparison of a training with injected faults with one without, and with goals."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from chaos_calm import Calm, ended
from chaos_faults import FAULTS
from chaos_job import Training, unequal

from atomo.training.checkpoints.checkpoint import latest, load
from atomo.training.evaluation.scoring import build_subject, score
from atomo.workloads import make_task

__all__ = ["Done", "Result", "Stretch", "broken", "closed", "judged", "outside", "stretches"]

NEAR = 0.02  # of the accuracy: by so much do two seeds differ
POLL_S = 0.05
WHOLE, SURVIVED, PROCESSES = "all", "outside of restarts", "beside faults of processes"


@final
@dataclass(frozen=True)
class Done:
    """A fault that was done; moments are those of `time.monotonic`."""

    fault: str
    at: float
    overcome: float
    """Time at which the job took steps as before, beyond those that it had taken already."""
    cost_s: float
    """The longest time between two steps after it, less the median."""
    restarted: bool
    told: bool = True
    """True if a line of the training spoke of it, if one should."""


@final
@dataclass(frozen=True)
class Stretch:
    """New steps in some of the seconds."""

    seconds: float
    steps: int
    steps_without: float
    """Steps a second of the training without faults."""

    @property
    def goodput(self) -> float:
        """The ratio of the steps with and without faults."""
        return self.steps / max(1.0, self.steps_without)


@final
@dataclass(frozen=True)
class Result:
    """Results of a run."""

    seconds: float
    faults: list[Done]
    stretches: dict[str, Stretch]
    """Stretches of the whole run, without the seconds of restarts, and without faults of links and
    disks.
    """
    rates_without: list[float]
    """Steps a second of the training without faults, where it ran before and after."""
    accuracy: float
    accuracy_without: float
    refused: int
    """Frames, by metrics.jsonl."""
    wrong: list[str]
    """Promises that were broken; empty: none."""

    def costs(self, names: Sequence[str], *, restarted: bool) -> list[float]:
        """Computes the cost of faults of these kinds that restarted the job, or did not."""
        found = [one for one in self.faults if one.restarted is restarted]
        return sorted(one.cost_s for one in found if one.fault in names)


def closed(training: Training, limit_s: float) -> list[str]:
    """Ends the training; returns the broken promises."""
    return ended("the training", training, limit_s) + broken(training, limit_s)


def judged(
    training: Training,
    calm: Calm,
    span: tuple[float, float],
    done: Sequence[Done],
    wrong: Sequence[str],
) -> Result:
    """Compares the training with the one without faults."""
    found = [*wrong]
    accuracy, without = accuracy_of(training.folder), accuracy_of(calm.folder)
    if accuracy < without - NEAR:
        found.append(f"its accuracy is {accuracy:.2%}, and {without:.2%} without faults")
    refused = sum(len(line.get("refused_from", ())) for line in training.metrics())
    return Result(
        span[1] - span[0], [*done], stretches(training, calm, span, done), calm.rates, accuracy,
        without, refused, found,
    )  # fmt: skip


def stretches(
    training: Training, calm: Calm, span: tuple[float, float], done: Sequence[Done]
) -> dict[str, Stretch]:
    """Returns the new steps of the whole run and of its parts, with those of the calm training."""
    again = [one for one in done if one.restarted]
    others = [one for one in done if one.restarted or not FAULTS[one.fault].of_process]
    parts = {WHOLE: [span], SURVIVED: outside(span, again), PROCESSES: outside(span, others)}
    return {
        name: Stretch(
            sum(to - since for since, to in some),
            sum(training.useful(*part) for part in some),
            calm.steps_in(some),
        )
        for name, some in parts.items()
    }


def outside(span: tuple[float, float], done: Sequence[Done]) -> list[tuple[float, float]]:
    """Returns the seconds that no fault of these took."""
    parts, since = [], span[0]
    for one in done:
        parts.append((since, one.at))
        since = one.overcome
    return [*parts, (min(since, span[1]), span[1])]


def broken(training: Training, limit_s: float) -> list[str]:
    """Lists inconsistencies in the folder of a run, and processes that it left."""
    lines = training.metrics()
    steps, found = [int(line["step"]) for line in lines], []
    if steps != [*range(1, len(steps) + 1)]:
        found.append("metrics.jsonl does not have every step once")
    if lacking := unequal(lines):
        found.append(f"gradients are not accounted for at steps {lacking[:5]}")
    if not steps or latest(training.folder) != len(steps):
        found.append(f"the last checkpoint is not that of step {len(steps)}")
    end = time.monotonic() + limit_s
    while training.ranks() and time.monotonic() < end:
        time.sleep(POLL_S)
    if left := training.ranks():
        found.append(f"ranks {sorted(left)} are left")
    return found


def accuracy_of(folder: Path) -> float:
    """Reads the accuracy of the last checkpoint of a run, on the test images; 0 without a
    checkpoint.
    """
    step = latest(folder) if folder.exists() else None
    if step is None:
        return 0.0
    subject = build_subject(make_task("images"), "LeNet", "Digits", None, folder, "cpu")
    return score(load(folder, step, parts=["model"]), subject, 1000).values["top1"]
