"""The results of a sweep: one line a trial in a file, so that it goes on where it stopped."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from rich.table import Table

from atomo.errors import CheckpointError
from atomo.launch.text import bytes_text
from atomo.tasks import Metric
from atomo.training.evaluation_log import EVALUATIONS
from atomo.training.json_lines import append_line, lines

__all__ = ["SweepTrial", "best", "measured", "past", "remember", "results_table"]

RESULTS: Final = "sweep.jsonl"
LAST: Final = 0.1  # of the steps: the loss of a single one says more of its images


@final
@dataclass(frozen=True)
class SweepTrial:
    """Results of one point of the grid."""

    name: str
    """Name of its folder: lr=0.5,momentum=0.9."""
    settings: str
    """All of them, as `settings.toml` has them."""
    steps: int
    loss: float | None
    """Training loss, the mean over the last tenth of the steps; None: it diverged."""
    accuracy: float
    """Training accuracy over the same steps."""
    step_s: float
    sent_bytes: float
    """Up, a step, by all workers."""
    tested: float | None = None
    """The headline of the task, of the last checkpoint; None: it was not evaluated."""


def measured(name: str, settings: str, folder: Path, diverged: bool, metric: Metric) -> SweepTrial:
    """Reads a trial's results from the steps in a run's folder, and from its checkpoints by
    `metric`.

    Raises:
        CheckpointError: they cannot be read.
    """
    steps = lines(folder / "metrics.jsonl")
    if not steps:
        return SweepTrial(name, settings, 0, None, 0.0, 0.0, 0.0)
    last = steps[-max(1, round(LAST * len(steps))) :]
    loss = None if diverged else mean([step["loss"] for step in last])
    accuracy = mean([step["accuracy"] for step in last])
    seconds = mean([step["step_s"] for step in steps])
    sent = mean([step["up_bytes"] for step in steps])
    evaluated = lines(folder / EVALUATIONS)
    tested = evaluated[-1].get(metric.key) if evaluated else None
    return SweepTrial(name, settings, steps[-1]["step"], loss, accuracy, seconds, sent, tested)


def past(folder: Path) -> dict[str, SweepTrial]:
    """Returns the trials of a sweep that are done, by their settings.

    Raises:
        CheckpointError: its results cannot be read.
    """
    try:
        found = [SweepTrial(**record) for record in lines(folder / RESULTS)]
    except TypeError as error:
        raise CheckpointError(f"{folder / RESULTS} is not that of a sweep: {error}") from error
    return {trial.settings: trial for trial in found}


def remember(folder: Path, trial: SweepTrial) -> None:
    """Adds a trial to the results.

    Raises:
        CheckpointError: it cannot be written.
    """
    append_line(folder / RESULTS, asdict(trial))


def best(trials: Sequence[SweepTrial], metric: Metric) -> SweepTrial | None:
    """Returns the trial of the best `metric` if all were evaluated, else that of the lowest loss;
    None: all diverged.

    None where all diverged.
    """
    whole = [trial for trial in trials if trial.loss is not None]
    sign = -1 if metric.higher_is_better else 1
    if all(trial.tested is not None for trial in whole):
        return min(whole, key=lambda trial: sign * (trial.tested or 0.0), default=None)
    return min(whole, key=lambda trial: trial.loss or 0.0, default=None)


def results_table(trials: Sequence[SweepTrial], metric: Metric) -> Table:
    """Returns one row a trial, the best one marked."""
    table = Table(title="training loss and accuracy: means over the last tenth of the steps")
    evaluated = any(trial.tested is not None for trial in trials)
    shown = [f"test {metric.shown}"] if evaluated else []
    for column in ("trial", "loss", "accuracy", *shown, "steps", "ms/step", "sent/step", ""):
        table.add_column(column, justify="left" if column == "trial" else "right")
    first = best(trials, metric)
    for trial in trials:
        table.add_row(
            trial.name,
            "diverged" if trial.loss is None else f"{trial.loss:.4f}",
            f"{trial.accuracy:.2%}",
            *(tested_text(trial, metric) for _ in shown),
            f"{trial.steps:,}",
            f"{1e3 * trial.step_s:.0f}",
            bytes_text(trial.sent_bytes),
            "best" if trial == first else "",
        )
    return table


def tested_text(trial: SweepTrial, metric: Metric) -> str:
    return "" if trial.tested is None else metric.text(trial.tested)


def mean(values: Sequence[int | float]) -> float:
    return sum(values) / len(values)
