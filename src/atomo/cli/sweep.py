"""`atomo sweep`: trains once for each of some values of options, and says which are best."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from atomo.config import effects as setting_effects
from atomo.config.effect_tables import Effect, caution, report_idle
from atomo.config.file import SETTINGS_FILE, settings_text
from atomo.config.settings import Settings
from atomo.core.arguments import to_arguments
from atomo.core.safe_read import read_whole
from atomo.core.visible import visible
from atomo.errors import ConfigError, Diverged
from atomo.launch.cli_settings import CliSettings, parse_cli_settings
from atomo.launch.console import report_console
from atomo.launch.jobs.mpirun import mpirun_command
from atomo.launch.resolve import resolve_settings
from atomo.launch.studies.grid import axes_of, grid_points
from atomo.launch.studies.quiet_jobs import QuietDisplay, run_trial
from atomo.launch.studies.sweep_results import (
    SweepTrial,
    append_trial,
    best_trial,
    read_trial,
    read_trials,
    results_table,
)
from atomo.training.folder.run_folder import present
from atomo.workloads import make_task

__all__ = ["main", "run_trials"]

DESCRIPTION: Final = """\
Trains once for each value of an option, and each combination of several; options are those of
`atomo train`. Numbers are separated by commas, codecs by semicolons; 2^-7..2^-1 has all powers
between. The best has the lowest training loss; with --evaluator local, the best test result.

  atomo sweep --lr 2^-7..2^-1 --max-steps 100
  atomo sweep --lr 0.01,0.1 --momentum 0,0.9 --code 'svd; qsgd' --train-dir runs/tune

Each trial has a folder in --train-dir. The same command continues an interrupted sweep."""

# Settings of a run that trials ignore.
EFFECTS: Final[Mapping[str, Effect[Settings]]] = MappingProxyType(
    {
        **setting_effects.TRAIN_EFFECTS,
        # `evaluator` is given to every trial, by `trial_arguments`.
        "test_batch_size": Effect(
            lambda settings: settings.evaluator.lower() != "none",
            "trials are evaluated with --evaluator local alone; give it, or leave this out",
        ),
        "log_interval": Effect(
            lambda settings: False, "trials print no lines of steps; leave it out"
        ),
    }
)

Run = Callable[[Settings], int]
"""Trains, and returns the exit code."""


def main(words: Sequence[str]) -> int:
    """Runs the trials that are not done yet, and prints all."""
    axes, fixed = axes_of(words)
    base = parse_cli_settings(fixed, "sweep", DESCRIPTION)
    if not axes:
        raise ConfigError("no option has several values; give some, as in --lr 2^-7..2^-1")
    folder = Path(base.settings.train_dir or default_folder(base.settings, base.name))
    grid = {point_name(point): point for point in grid_points(axes)}
    trials_given = {name: trial_arguments(fixed, point) for name, point in grid.items()}
    check_grid(trials_given, caution("sweep"))
    planned = {name: place_trial(trial, folder, name) for name, trial in trials_given.items()}
    metric = make_task(base.settings.task).metrics[0]
    code, trials = run_trials(planned, folder, lambda trial: run_trial(trial, QuietDisplay()))
    if trials:
        report_console(120).print(results_table(trials, metric))
    if not code:
        first = best_trial(trials, metric)
        sys.stdout.write(visible(advice(grid[first.name] if first else {})))
    return code


def run_trials(
    planned: Mapping[str, Settings], folder: Path, run: Run
) -> tuple[int, list[SweepTrial]]:
    """Runs the trials that are not done yet.

    Args:
        planned: settings of each trial, by its name.
        folder: has the results.
        run: trains. A run that diverges is a result; any other failure ends the sweep.

    Returns:
        The exit code, and the trials that are done.
    """
    texts = {
        name: settings_text(checked_trial(name, settings)) for name, settings in planned.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    done, trials = read_trials(folder), list[SweepTrial]()
    for name, settings in planned.items():
        text = texts[name]
        if text not in done:
            code = run(
                settings if matches_settings(text, settings) else replace(settings, resume="never")
            )
            if code not in (0, Diverged.exit_code):
                return code, trials
            metric = make_task(settings.task).metrics[0]
            done[text] = read_trial(name, text, Path(settings.train_dir), bool(code), metric)
            append_trial(folder, done[text])
            print_trial(done[text])
        trials.append(done[text])
    return 0, trials


def checked_trial(name: str, settings: Settings) -> Settings:
    """Returns the settings of a trial as its job gets them, checked before any trial is run.

    Raises:
        ConfigError: a setting does not hold; the message names the trial.
    """
    try:
        resolved = resolve_settings(settings)
        mpirun_command(resolved, to_arguments(resolved))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return resolved


def check_grid(trials: Mapping[str, CliSettings], report: Callable[[str], object]) -> None:
    """Says which options have no effect in any trial.

    Raises:
        ConfigError: one of them was meant to have one, or a trial's settings contradict each other.
    """
    idle: list[dict[str, Effect[Settings]]] = []
    for name, trial in trials.items():
        try:
            trial.check_codes()
            idle.append(trial.idle(EFFECTS))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    shared = set(idle[0]).intersection(*idle)  # an option that one trial reads is not idle
    report_idle(
        {name: effect for name, effect in idle[0].items() if name in shared},
        next(iter(trials.values())).options,
        report,
    )


def matches_settings(text: str, settings: Settings) -> bool:
    """True if the folder of a trial is empty, or has a run of the same settings."""
    stored = present(Path(settings.train_dir) / SETTINGS_FILE, read_whole, 0.0, time.sleep)
    return stored is None or stored.decode(errors="replace") == text


def place_trial(trial: CliSettings, folder: Path, name: str) -> Settings:
    """Returns the settings of a trial in a folder of its own."""
    return replace(trial.settings, train_dir=str(folder / name))


def trial_arguments(fixed: Sequence[str], point: Mapping[str, str]) -> CliSettings:
    """Returns the settings of one point of the grid, as from a command line of its own."""
    evaluator = (
        [] if any(word.startswith("--evaluator") for word in fixed) else ["--evaluator=none"]
    )
    words = [*fixed, *evaluator, *(f"{option}={value}" for option, value in point.items())]
    return parse_cli_settings(words, "sweep", DESCRIPTION)


def point_name(point: Mapping[str, str]) -> str:
    """Returns a name for a folder: lr=0.5,momentum=0.9."""
    named = ",".join(f"{option.removeprefix('--')}={value}" for option, value in point.items())
    return named.replace(" ", "")


def default_folder(settings: Settings, name: str) -> Path:
    """Returns one that the same command finds again."""
    label = name or f"{settings.network}-{settings.dataset}".lower()
    return Path("runs") / f"sweep-{label}"


def print_trial(trial: SweepTrial) -> None:
    """Prints one line as soon as a trial is done."""
    loss = "diverged" if trial.loss is None else f"loss {trial.loss:.4f}"
    sys.stdout.write(visible(f"{trial.name}: {loss} after {trial.steps} steps\n"))
    sys.stdout.flush()


def advice(first: Mapping[str, str]) -> str:
    """Recommends the options of the best trial, if there is one."""
    if not first:
        return "all diverged: try lower learning rates\n"
    return f"best: {' '.join(shlex.join(pair) for pair in first.items())}\n"
