"""How a run is watched from outside its loop: who may pause it, and who has its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from atomo.training.events import StepDone
from atomo.training.ownership import Ownership

__all__ = ["UNWATCHED", "Watched"]


@final
@dataclass(frozen=True)
class Watched:
    """What rank 0 goes by; others have no use for it."""

    drifts: Callable[[StepDone], bool]
    """Takes in a step; whether all ranks are to pause after it, or after the next."""
    owner: Ownership | None = None
    """The right to the folder, where it is kept beyond a pause."""


UNWATCHED: Final = Watched(lambda done: False)
