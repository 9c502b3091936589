"""Detection of divergence while the loss is still finite."""

import math
from typing import Final, final

__all__ = ["DivergenceMonitor"]

SMOOTHING: Final = 0.8  # weight of the past losses; lower => faster, with more false alarms
RATIO: Final = 2.0  # minimum ratio of the smoothed loss to the best so far
MARGIN: Final = 1.0  # minimum difference, too: a loss of 0.01 that doubles is no alarm
STEPS: Final = 3  # in a row


@final
class DivergenceMonitor:
    """Detector that compares a smoothed loss with its best so far, and alarms once.

    A checkpoint does not have its state: after a resume an alarm may come later.
    """

    def __init__(self) -> None:
        self._loss = self._best = math.inf
        self._above = 0
        self._alarmed = False

    def alarms(self, loss: float) -> bool:
        """Observes the loss of a step; returns True if it is the first alarm."""
        before = loss if math.isinf(self._loss) else self._loss
        self._loss = SMOOTHING * before + (1 - SMOOTHING) * loss
        self._best = min(self._best, self._loss)
        high = self._loss > max(RATIO * self._best, self._best + MARGIN)
        self._above = self._above + 1 if high else 0
        if self._alarmed or self._above < STEPS:
            return False
        self._alarmed = True
        return True

    def __str__(self) -> str:
        return f"the loss is {self._loss:.3g} after {self._best:.3g} before: this run may diverge"
