"""Cadence of checkpoints: every few steps, and also every few seconds."""

import time
from collections.abc import Callable
from typing import final

__all__ = ["Cadence"]


@final
class Cadence:
    """Schedule of checkpoints: decides after each step if a checkpoint is due."""

    def __init__(
        self, every_steps: int, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Creates a cadence that begins now.

        Args:
            every_steps: a checkpoint is due after each multiple of this step.
            every_s: also due if the last checkpoint is this old, in seconds; 0: at no age.
            clock: in seconds.
        """
        self._every_steps, self._every_s, self._clock = every_steps, every_s, clock
        self._since = clock()

    def begin(self) -> None:
        """Records that a checkpoint is written, or that the first step begins."""
        self._since = self._clock()

    @property
    def is_old(self) -> bool:
        """Returns True if the last checkpoint is too old."""
        return self.is_older(0.0)

    def is_older(self, by_s: float) -> bool:
        """Returns True if the last checkpoint is too old by a number of seconds."""
        return 0 < self._every_s <= self._clock() - self._since - by_s

    def due(self, step: int, first: int | None = None) -> bool:
        """Returns True if a checkpoint is due after this step, by its number alone.

        Args:
            step: the last finished step.
            first: the first of the steps that a round of local steps took together; None: `step`.
        """
        before = (step if first is None else first) - 1
        return step // self._every_steps > before // self._every_steps
