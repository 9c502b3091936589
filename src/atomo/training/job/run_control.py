"""Control of a run from outside its loop: pauses between steps, and the right to its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from atomo.training.folder.ownership import Ownership
from atomo.training.job.events import StepDone

__all__ = ["NO_CONTROL", "RunControl"]


@final
@dataclass(frozen=True)
class RunControl:
    """Control of rank 0; other ranks ignore it."""

    drifts: Callable[[StepDone], bool]
    """Observes a step; returns True if all ranks should pause after this step or the next."""
    owner: Ownership | None = None
    """The right to the folder, if the run keeps the right during a pause."""


NO_CONTROL: Final = RunControl(lambda done: False)
