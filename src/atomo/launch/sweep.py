"""The results of a sweep: one line a trial in a file, so that it goes on where it stopped."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from rich.table import Table

from atomo.errors import CheckpointError
from atomo.launch.text import bytes_text
from atomo.training.json_lines import append_line, lines

__all__ = ["Trial", "best", "measured", "past", "remember", "results_table"]

RESULTS: Final = "sweep.jsonl"
LAST: Final = 0.1  # of the steps: the loss of a single one says more of its images


@final
@dataclass(frozen=True)
class Trial:
    """What one point of the grid came to."""

    name: str
    """Of its folder: lr=0.5,momentum=0.9."""
    settings: str
    """All of them, as `settings.toml` has them."""
    steps: int
    loss: float | None
    """Of the training images, the mean over the last tenth of the steps; None: it diverged."""
    accuracy: float
    """Of the same."""
    step_s: float
    sent_bytes: float
    """Up, a step, by all workers."""


def measured(name: str, settings: str, folder: Path, diverged: bool) -> Trial:
    """What the steps in a run's folder come to.

    Raises:
        CheckpointError: they cannot be read.
    """
    steps = lines(folder / "metrics.jsonl")
    if not steps:
        return Trial(name, settings, 0, None, 0.0, 0.0, 0.0)
    last = steps[-max(1, round(LAST * len(steps))) :]
    loss = None if diverged else mean([step["loss"] for step in last])
    accuracy = mean([step["accuracy"] for step in last])
    seconds = mean([step["step_s"] for step in steps])
    sent = mean([step["up_bytes"] for step in steps])
    return Trial(name, settings, steps[-1]["step"], loss, accuracy, seconds, sent)


def past(folder: Path) -> dict[str, Trial]:
    """The trials of a sweep that are done, by their settings.

    Raises:
        CheckpointError: its results cannot be read.
    """
    try:
        found = [Trial(**record) for record in lines(folder / RESULTS)]
    except TypeError as error:
        raise CheckpointError(f"{folder / RESULTS} is not that of a sweep: {error}") from error
    return {trial.settings: trial for trial in found}


def remember(folder: Path, trial: Trial) -> None:
    """Adds a trial to the results.

    Raises:
        CheckpointError: it cannot be written.
    """
    append_line(folder / RESULTS, asdict(trial))


def best(trials: Sequence[Trial]) -> Trial | None:
    """That of the lowest loss; None where all diverged."""
    whole = [trial for trial in trials if trial.loss is not None]
    return min(whole, key=lambda trial: trial.loss or 0.0, default=None)


def results_table(trials: Sequence[Trial]) -> Table:
    """One row a trial, the best one marked."""
    table = Table(title="training loss and accuracy: means over the last tenth of the steps")
    for column in ("trial", "loss", "accuracy", "steps", "ms/step", "sent/step", ""):
        table.add_column(column, justify="left" if column == "trial" else "right")
    first = best(trials)
    for trial in trials:
        table.add_row(
            trial.name,
            "diverged" if trial.loss is None else f"{trial.loss:.4f}",
            f"{trial.accuracy:.2%}",
            f"{trial.steps:,}",
            f"{1e3 * trial.step_s:.0f}",
            bytes_text(trial.sent_bytes),
            "best" if trial == first else "",
        )
    return table


def mean(values: Sequence[int | float]) -> float:
    return sum(values) / len(values)
