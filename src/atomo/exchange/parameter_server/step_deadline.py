"""Deadline of a step: when it is closed without all of its gradients."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

__all__ = ["StepDeadline", "StepLimits"]


@final
@dataclass(frozen=True)
class StepLimits:
    """Limits of the wait for gradients in a step."""

    step_s: float = 0.0
    """Seconds after which a step is closed if it has any gradient; 0: no limit."""
    grace: float = 0.0
    """Wait for further gradients once a step has all that it needs, as a multiple of the time until
    then; higher: more gradients in a step, and longer steps.
    """


@final
class StepDeadline:
    """Clock of the open step."""

    def __init__(self, limits: StepLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without an open step.

        Args:
            limits: for each.
            clock: in seconds.
        """
        self._limits, self._clock = limits, clock
        self._opened = 0.0
        self._enough: float | None = None

    def open(self) -> None:
        """Starts the clock of a step."""
        self._opened, self._enough = self._clock(), None

    def remaining_s(self, complete: int, needed: int, most: int, behind: int = 0) -> float:
        """Returns the seconds that the step still waits; 0 to close it now, infinity to wait for
        more gradients without a limit.

        Args:
            complete: number of complete gradients.
            needed: number of gradients that close the step.
            most: largest possible number of gradients.
            behind: number of missing gradients whose workers still compute an earlier step.
        """
        if not complete:
            return math.inf
        now, limits = self._clock(), self._limits
        over_s = self._opened + limits.step_s - now if limits.step_s else math.inf
        # An earlier step already waited for a worker that is behind, and was closed without it. If
        # the worker hangs, each step until its death would wait for the whole time again. So a
        # step does not wait for workers that are behind once all others are complete. Below
        # `needed` gradients this holds only for a majority: where most workers are behind, the
        # workers are slow and not hung, and steps of a few gradients, with a noisier mean, would
        # follow each other without a wait.
        most_are_there = complete >= needed or (limits.step_s and 2 * complete > needed)
        if complete >= most or (most_are_there and complete + behind >= most):
            return 0.0
        if complete < needed:
            return max(0.0, over_s)
        if self._enough is None:
            self._enough = now
        grace_s = self._enough + limits.grace * (self._enough - self._opened) - now
        return max(0.0, min(over_s, grace_s))
