"""Restarts of a job that lost processes: each continues from the newest checkpoint.

Hosts that no longer answer are left out; the remaining hosts run all ranks.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from atomo.config.checks import ANYWAY
from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError, TooFewWorkers, TransportError
from atomo.launch.display.lines import Display
from atomo.launch.display.summary import Summary
from atomo.training.checkpoints.index import latest

__all__ = ["run_with_restarts"]

# Failures that another attempt may not repeat. A wrong setting, damaged data, a full disk or a loss
# that is no number fails the same way each time.
WORTH: Final = frozenset({TransportError.exit_code, TooFewWorkers.exit_code})


class Attempt(Protocol):
    """One job from its start to its end."""

    @property
    def interrupted(self) -> bool:
        """True if the job was interrupted."""

    def run(self) -> int:
        """Runs the job and returns its exit code."""


def run_with_restarts(
    settings: Settings,
    attempt: Callable[[Settings, frozenset[str]], Attempt],
    summary: Summary,
    display: Display,
    lost: Callable[[], frozenset[str]] = frozenset,
) -> int:
    """Runs a job, and restarts it at most `--max-restarts` times while it loses processes.

    An attempt that took no step is followed by another only on other hosts: on the same hosts it
    would fail again.

    Args:
        settings: the settings of the job, with a folder of its own.
        attempt: makes a job from settings and from the hosts to leave out.
        summary: collects the results of all attempts.
        display: shows the messages about restarts.
        lost: returns the hosts that do not answer now.

    Returns:
        The exit code of the last attempt.
    """
    away, stuck = frozenset[str](), False
    job = attempt(settings, away)
    code = job.run()
    for number in range(1, settings.max_restarts + 1):
        if code not in WORTH or job.interrupted:
            break
        before, away = away, lost()
        if stuck and away == before:
            display.note("atomo: the job took no step since its restart, and is not started again")
            break
        again, step = continued_settings(settings)
        display.note(
            f"atomo: restart {number} of {settings.max_restarts}, {report_restart(step, away)}"
        )
        steps = summary.steps
        try:
            job = attempt(again, away)
        except ConfigError as error:  # the remaining hosts have too few slots
            display.note(f"atomo: not started again: {error}")
            break
        code = job.run()
        stuck = summary.steps == steps
    return code


def report_restart(step: int, away: frozenset[str]) -> str:
    """Names the step at which the next attempt begins, and the hosts left out."""
    beginning = f"from the checkpoint of step {step}" if step else "from the beginning"
    without = f"; without {', '.join(sorted(away))}, which did not answer" if away else ""
    return beginning + without


def continued_settings(settings: Settings) -> tuple[Settings, int]:
    """Returns the settings that continue from the newest checkpoint of the folder, and its step;
    0: there is no checkpoint.
    """
    try:
        step = latest(Path(settings.train_dir))
    except CheckpointError:  # the folder may be readable again when the master reads it
        step = None
    if step is None and settings.resume != "never":
        return settings, 0
    # With ANYWAY, other settings may still differ from those of the checkpoint.
    here = ANYWAY if settings.resume == ANYWAY else "auto"
    return replace(settings, resume=here), step or 0
