"""Deadline of a step, after which the step closes without its missing gradients."""

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
    """Wait for further gradients once a step has all needed gradients, as a multiple of the time
    until then. Higher: more gradients in a step, and longer steps.
    """


@final
class StepDeadline:
    """Clock of the open step."""

    def __init__(self, limits: StepLimits, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts without an open step.

        Args:
            limits: of each step.
            clock: in seconds.
        """
        self._limits, self._clock = limits, clock
        self._opened = 0.0
        self._needed_at: float | None = None

    def open(self) -> None:
        """Starts the clock of a step."""
        self._opened, self._needed_at = self._clock(), None

    def delay(self, seconds: float) -> None:
        """Moves the clock of the step by the time that the master was busy."""
        self._opened += seconds
        if self._needed_at is not None:
            self._needed_at += seconds

    def remaining_s(self, complete: int, needed: int, possible: int, busy: int = 0) -> float:
        """Returns the seconds that the step still waits; 0 to close it now, infinity to wait for
        more gradients without a limit.

        Args:
            complete: number of complete gradients.
            needed: number of gradients that close the step.
            possible: largest possible number of gradients.
            busy: number of missing gradients whose workers still compute an earlier step.
        """
        if not complete:
            return math.inf
        now, limits = self._clock(), self._limits
        limit_s = self._opened + limits.step_s - now if limits.step_s else math.inf
        # An earlier step already waited for a busy worker, and closed without it. If the worker
        # hangs, each step until its death would wait for the whole time again. So a step does not
        # wait for busy workers once the gradients of all other workers are complete. With fewer
        # than `needed` gradients, this holds only for a majority: if most workers are busy, they
        # are slow and not hung, and steps of a few gradients, with a noisier mean, would follow
        # each other without a wait.
        has_quorum = complete >= needed or (limits.step_s and 2 * complete > needed)
        if complete >= possible or (has_quorum and complete + busy >= possible):
            return 0.0
        if complete < needed:
            return max(0.0, limit_s)
        if self._needed_at is None:
            self._needed_at = now
        grace_s = self._needed_at + limits.grace * (self._needed_at - self._opened) - now
        return max(0.0, min(limit_s, grace_s))
