"""The results of a sweep: one line a trial in a file, from which an interrupted sweep continues."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from rich.table import Table

from atomo.core.number_text import bytes_text
from atomo.errors import CheckpointError
from atomo.training.evaluation.evaluation_log import EVALUATIONS
from atomo.training.records.json_lines import append_line, lines
from atomo.training.records.step_lines import LAST_STEP, number_in, step_lines, whole_in
from atomo.workloads import Metric

__all__ = ["SweepTrial", "append_trial", "best_trial", "read_trial", "read_trials", "results_table"]

RESULTS: Final = "sweep.jsonl"
LAST: Final = 0.1  # share of the steps to average: the loss of one step depends on its images


@final
@dataclass(frozen=True)
class SweepTrial:
    """Results of one point of the grid."""

    name: str
    """Name of the trial's folder: lr=0.5,momentum=0.9."""
    settings: str
    """All settings, as in `settings.toml`."""
    steps: int
    loss: float | None
    """Training loss, the mean over the last tenth of the steps; None: it diverged."""
    accuracy: float
    """Training accuracy over the same steps."""
    step_s: float
    sent_bytes: float
    """Bytes that all workers send in a step."""
    tested: float | None = None
    """The task's main metric at the last checkpoint; None: not evaluated."""


def read_trial(
    name: str, settings: str, folder: Path, diverged: bool, metric: Metric
) -> SweepTrial:
    """Reads a trial's results: the steps of the run's folder, and the last value of `metric`.

    Raises:
        CheckpointError: the results cannot be read.
    """
    numbers = ["accuracy", "step_s", "up_bytes", *([] if diverged else ["loss"])]
    steps = step_lines(folder, numbers)
    if not steps:
        return SweepTrial(name, settings, 0, None, 0.0, 0.0, 0.0)
    last = steps[-max(1, round(LAST * len(steps))) :]
    loss = None if diverged else mean([step["loss"] for step in last])
    accuracy = mean([step["accuracy"] for step in last])
    seconds = mean([step["step_s"] for step in steps])
    sent = mean([step["up_bytes"] for step in steps])
    tested = last_result(folder / EVALUATIONS, metric)
    return SweepTrial(name, settings, steps[-1]["step"], loss, accuracy, seconds, sent, tested)


def last_result(log: Path, metric: Metric) -> float | None:
    """Returns the last result of an evaluator; None: the log has no result.

    Raises:
        CheckpointError: the log cannot be read, or its last line is no result.
    """
    try:
        return next((maybe_number(record, metric.key) for record in lines(log)[-1:]), None)
    except ValueError as error:
        raise CheckpointError(f"{log}: the last line is no result ({error}); remove it") from error


def read_trials(folder: Path) -> dict[str, SweepTrial]:
    """Returns the finished trials of a sweep, by their settings.

    Raises:
        CheckpointError: the results cannot be read.
    """
    path, trials = folder / RESULTS, list[SweepTrial]()
    for place, record in enumerate(lines(path), 1):
        try:
            trials.append(trial_from(record))
        except ValueError as error:
            raise CheckpointError(
                f"{path} is not that of a sweep: line {place}: {error}; remove it"
            ) from error
    return {trial.settings: trial for trial in trials}


def trial_from(record: object) -> SweepTrial:
    """Returns the trial of a record. Raises ValueError for a record that is no trial."""
    if not isinstance(record, Mapping):
        raise ValueError("not a JSON object")
    for name in ("name", "settings"):
        if not isinstance(record.get(name), str):
            raise ValueError(f"{name} is {record.get(name)!r:.60}, not a text")
    return SweepTrial(
        record["name"],
        record["settings"],
        steps=whole_in(record, "steps", LAST_STEP),
        loss=maybe_number(record, "loss"),
        tested=maybe_number(record, "tested"),
        **{name: number_in(record, name) for name in ("accuracy", "step_s", "sent_bytes")},
    )


def maybe_number(record: object, name: str) -> float | None:
    """Returns a number of a record; None: it has none. Raises ValueError for other values."""
    if not isinstance(record, Mapping):
        raise ValueError("not a JSON object")
    return None if record.get(name) is None else number_in(record, name)


def append_trial(folder: Path, trial: SweepTrial) -> None:
    """Adds a trial to the results.

    Raises:
        CheckpointError: the file cannot be written.
    """
    append_line(folder / RESULTS, asdict(trial))


def best_trial(trials: Sequence[SweepTrial], metric: Metric) -> SweepTrial | None:
    """Returns the trial with the best `metric` if all trials were evaluated, otherwise the one with
    the lowest loss; None: all diverged.
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
    first = best_trial(trials, metric)
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
