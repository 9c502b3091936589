"""A job that lost processes is started again, and goes on from its newest checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from atomo.config import Settings
from atomo.errors import CheckpointError, TooFewWorkers, TransportError
from atomo.launch.lines import Display
from atomo.launch.summary import Summary
from atomo.training.listing import latest

__all__ = ["restarted"]

# What another attempt may mend. A setting, the data, a full disk or a loss that is no number come
# to the same end each time.
WORTH: Final = frozenset({TransportError.exit_code, TooFewWorkers.exit_code})


class Attempt(Protocol):
    """One job from its start to its end."""

    @property
    def interrupted(self) -> bool:
        """Whether it was told to end."""

    def run(self) -> int:
        """Its exit code."""


def restarted(
    settings: Settings,
    attempt: Callable[[Settings], Attempt],
    summary: Summary,
    display: Display,
) -> int:
    """Runs a job, and again while it loses processes, at most `--max-restarts` times more.

    One that took no step since it was started again gives up: it would not the next time either.

    Args:
        settings: of the job, in a folder that is its own.
        attempt: makes a job of settings.
        summary: takes in what all of them come to.
        display: shows what is said of it.

    Returns:
        The exit code of the last.
    """
    job = attempt(settings)
    code = job.run()
    for number in range(1, settings.max_restarts + 1):
        if code not in WORTH or job.interrupted:
            break
        again, step = continued(settings)
        where = f"from the checkpoint of step {step}" if step else "from the beginning"
        display.note(f"atomo: restart {number} of {settings.max_restarts}, {where}")
        before = summary.steps
        job = attempt(again)
        code = job.run()
        if code in WORTH and summary.steps == before:
            display.note("atomo: it took no step since, and is not started again")
            break
    return code


def continued(settings: Settings) -> tuple[Settings, int]:
    """The settings that go on with what lies in the folder, and the step that they go on from."""
    try:
        step = latest(Path(settings.train_dir))
    except CheckpointError:  # the folder may be back by the time the master looks
        step = None
    if step is None and settings.resume != "never":
        return settings, 0
    return replace(settings, resume="auto"), step or 0
