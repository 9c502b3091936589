"""What a training came to that faults were done to, beside one without."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from chaos_job import Training, unequal

from atomo.tasks import make_task
from atomo.training.checkpoint import latest, load
from atomo.training.scoring import build_subject, score

__all__ = ["Done", "Result", "judged", "table"]

NEAR = 0.02  # of the accuracy: by so much do two seeds differ
INTERRUPTED = 130
POLL_S = 0.05


@final
@dataclass(frozen=True)
class Done:
    """A fault that was done; moments are those of `time.monotonic`."""

    fault: str
    at: float
    overcome: float
    cost_s: float
    """The longest time between two steps after it, less the median."""
    restarted: bool


@final
@dataclass(frozen=True)
class Result:
    """What a run came to."""

    seconds: float
    faults: list[Done]
    steps: int
    steps_without: int
    """Of the training without faults, in the same seconds."""
    survived_steps: int
    survived_steps_without: int
    """The same, of the seconds in which the job was not starting again."""
    accuracy: float
    accuracy_without: float
    wrong: list[str]
    """Promises that were broken; empty: none."""

    @property
    def restart_s(self) -> list[float]:
        """What each fault cost after which the job started again."""
        return [one.cost_s for one in self.faults if one.restarted]


def judged(
    training: Training,
    calm: Training,
    span: tuple[float, float],
    done: Sequence[Done],
    wrong: Sequence[str],
    limit_s: float,
) -> Result:
    """Ends both, and holds them against each other and against what is promised."""
    found = [*wrong]
    for name, one in (("the training", training), ("the one without faults", calm)):
        code = one.end(limit_s)
        if code is None:
            found.append(f"{name} did not end within {limit_s:g} s of its interrupt")
        elif code != INTERRUPTED:
            found.append(f"{name} ended with code {code}: {' / '.join(one.told[-5:])}")
    found += broken(training, limit_s)
    accuracy, without = accuracy_of(training), accuracy_of(calm)
    if accuracy < without - NEAR:
        found.append(f"its accuracy is {accuracy:.2%}, and {without:.2%} without faults")
    parts = survived(span, done)
    return Result(
        span[1] - span[0],
        [*done],
        training.useful(*span),
        calm.useful(*span),
        sum(training.useful(*part) for part in parts),
        sum(calm.useful(*part) for part in parts),
        accuracy,
        without,
        found,
    )


def survived(span: tuple[float, float], done: Sequence[Done]) -> list[tuple[float, float]]:
    """The seconds in which the job was not starting again."""
    parts, since = [], span[0]
    for one in done:
        if one.restarted:
            parts.append((since, one.at))
            since = one.overcome
    return [*parts, (since, span[1])]


def broken(training: Training, limit_s: float) -> list[str]:
    """What does not add up in the folder of a run, and processes that it has left."""
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


def accuracy_of(training: Training) -> float:
    """Of its last checkpoint, on the test images; 0 without one."""
    step = latest(training.folder) if training.folder.exists() else None
    if step is None:
        return 0.0
    subject = build_subject(make_task("images"), "LeNet", "Digits", None, training.folder, "cpu")
    return score(load(training.folder, step, parts=["model"]), subject, 1000).values["top1"]


def table(result: Result) -> str:
    """For people, in Markdown."""
    rows = [
        "| fault | times | started again | cost, s: median, most |",
        "| --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(one.fault for one in result.faults):
        for again in (False, True):
            costs = [
                one.cost_s for one in result.faults if one.fault == name and one.restarted is again
            ]
            if costs:
                cost = f"{statistics.median(costs):.2f}, {max(costs):.2f}"
                rows.append(f"| {name} | {len(costs)} | {'yes' if again else 'no'} | {cost} |")
    whole = result.steps / max(1, result.steps_without)
    part = result.survived_steps / max(1, result.survived_steps_without)
    rows += [
        "",
        f"{len(result.faults)} faults in {result.seconds / 60:.1f} minutes, "
        f"{len(result.restart_s)} of which made the job start again; no hang"
        if not result.wrong
        else "broken: " + "; ".join(result.wrong),
        f"steps: {result.steps} of {result.steps_without} without faults, goodput {whole:.1%}; "
        f"outside of restarts {part:.1%}",
        f"accuracy: {result.accuracy:.2%}, without faults {result.accuracy_without:.2%}",
    ]
    return "\n".join(rows)
