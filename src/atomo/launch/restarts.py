"""A job that lost processes is started again, and goes on from its newest checkpoint.

Hosts that no longer answer are left out; the others share its ranks.
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

# What another attempt may mend. A setting, the data, a full disk or a loss that is no number come
# to the same end each time.
WORTH: Final = frozenset({TransportError.exit_code, TooFewWorkers.exit_code})


class Attempt(Protocol):
    """One job from its start to its end."""

    @property
    def interrupted(self) -> bool:
        """True if it was told to end."""

    def run(self) -> int:
        """Returns its exit code."""


def run_with_restarts(
    settings: Settings,
    attempt: Callable[[Settings, frozenset[str]], Attempt],
    summary: Summary,
    display: Display,
    lost: Callable[[], frozenset[str]] = frozenset,
) -> int:
    """Runs a job, and again while it loses processes, at most `--max-restarts` times more.

    One that took no step since it was started again gives up: it would not the next time either,
    unless it is on other hosts then.

    Args:
        settings: of the job, in a folder that is its own.
        attempt: makes a job of settings and of the hosts that it is to leave out.
        summary: takes in what all of them come to.
        display: shows what is said of it.
        lost: the hosts that do not answer now.

    Returns:
        The exit code of the last.
    """
    away, stuck = frozenset[str](), False
    job = attempt(settings, away)
    code = job.run()
    for number in range(1, settings.max_restarts + 1):
        if code not in WORTH or job.interrupted:
            break
        before, away = away, lost()
        if stuck and away == before:
            display.note("atomo: it took no step since, and is not started again")
            break
        again, step = continued_settings(settings)
        display.note(
            f"atomo: restart {number} of {settings.max_restarts}, {report_restart(step, away)}"
        )
        steps = summary.steps
        try:
            job = attempt(again, away)
        except ConfigError as error:  # the hosts that are left have no room for it
            display.note(f"atomo: not started again: {error}")
            break
        code = job.run()
        stuck = summary.steps == steps
    return code


def report_restart(step: int, away: frozenset[str]) -> str:
    """Tells the step at which the next attempt begins."""
    beginning = f"from the checkpoint of step {step}" if step else "from the beginning"
    without = f"; without {', '.join(sorted(away))}, which did not answer" if away else ""
    return beginning + without


def continued_settings(settings: Settings) -> tuple[Settings, int]:
    """Returns the settings that go on with what lies in the folder, and the step that they go on
    from.
    """
    try:
        step = latest(Path(settings.train_dir))
    except CheckpointError:  # the folder may be back by the time the master looks
        step = None
    if step is None and settings.resume != "never":
        return settings, 0
    # Another setting may still differ from those of the checkpoint.
    here = ANYWAY if settings.resume == ANYWAY else "auto"
    return replace(settings, resume=here), step or 0
