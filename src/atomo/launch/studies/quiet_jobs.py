"""Jobs without a live display, run for their results."""

import sys
from typing import final

from atomo.config.settings import Settings
from atomo.core.arguments import to_arguments
from atomo.core.visible import visible
from atomo.launch.jobs.mpirun import mpirun_command
from atomo.launch.resolve import claim_folder, resolve_settings
from atomo.launch.run_journal import journal_of
from atomo.launch.supervisor import Supervisor
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Caution, Event, StepDone

__all__ = ["QuietDisplay", "run_trial"]


@final
class QuietDisplay:
    """A display that records the steps, and prints only cautions and notes."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []

    def show(self, event: Event | Evaluation) -> None:
        match event:
            case StepDone():
                self.steps.append(event)
            case Caution():
                self.note(f"caution: {event.text}")

    def note(self, line: str) -> None:
        sys.stderr.write(f"  {visible(line)}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Does nothing: the terminal was not changed."""


def run_trial(settings: Settings, recorder: QuietDisplay) -> int:
    """Trains to the end, in the folder that the settings name, and returns the exit code.

    Raises:
        ConfigError: a setting is wrong; no process was started.
    """
    settings = claim_folder(resolve_settings(settings), is_named=True)
    line = mpirun_command(settings, to_arguments(settings))
    with journal_of(settings, recorder) as (display, codes):
        codes.append(Supervisor(settings, line, display).run())
    return codes[-1]
