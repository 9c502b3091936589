"""When a step is closed, if not all of its gradients are there."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

__all__ = ["StepDeadline", "StepLimits"]


@final
@dataclass(frozen=True)
class StepLimits:
    """How long a step waits for gradients."""

    step_s: float = 0.0
    """A step that has any gradient is closed so long after it was opened; 0: it waits for all that
    it needs."""
    grace: float = 0.0
    """Once a step has all that it needs, it waits for others, this many times as long as it has
    waited until then; higher => more gradients a step, and longer steps."""


@final
class StepDeadline:
    """Watches the time of one step after another."""

    def __init__(self, limits: StepLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """No step is open.

        Args:
            limits: for each.
            clock: in seconds.
        """
        self._limits, self._clock = limits, clock
        self._opened = 0.0
        self._enough: float | None = None

    def open(self) -> None:
        """A step begins."""
        self._opened, self._enough = self._clock(), None

    def remaining_s(self, complete: int, needed: int, most: int, behind: int = 0) -> float:
        """How much longer the step waits; 0: it is to be closed now; infinity: until there are
        enough.

        Args:
            complete: gradients that are there.
            needed: how many close it.
            most: how many may come.
            behind: of how many of these the workers still compute an earlier step.
        """
        if not complete:
            return math.inf
        now, limits = self._clock(), self._limits
        over_s = self._opened + limits.step_s - now if limits.step_s else math.inf
        # Who is behind was waited for already, in the step that was closed without it. If it hangs,
        # each step until it is killed would take the whole time.
        most_are_there = complete >= needed or (limits.step_s and 2 * complete > needed)
        if complete >= most or (most_are_there and complete + behind >= most):
            return 0.0
        if complete < needed:
            return max(0.0, over_s)
        if self._enough is None:
            self._enough = now
        grace_s = self._enough + limits.grace * (self._enough - self._opened) - now
        return max(0.0, min(over_s, grace_s))
