"""Detection of divergence while the loss is still finite."""

import math
from typing import Final, final

__all__ = ["DivergenceMonitor"]

SMOOTHING: Final = 0.8  # weight of the past losses; lower => sooner to notice, easier to fool
RATIO: Final = 2.0  # of the smoothed loss to the best so far, at least ...
MARGIN: Final = 1.0  # ... and this far above it: a loss of 0.01 that doubles is no matter
STEPS: Final = 3  # in a row


@final
class DivergenceMonitor:
    """Compares a smoothed loss with its best so far; says so once.

    It forgets on a resume, which costs at most a caution that comes later.
    """

    def __init__(self) -> None:
        self._loss = self._best = math.inf
        self._above = 0
        self._told = False

    def alarms(self, loss: float) -> bool:
        """Takes in the loss of a step; whether it is time to say something."""
        before = loss if math.isinf(self._loss) else self._loss
        self._loss = SMOOTHING * before + (1 - SMOOTHING) * loss
        self._best = min(self._best, self._loss)
        high = self._loss > max(RATIO * self._best, self._best + MARGIN)
        self._above = self._above + 1 if high else 0
        if self._told or self._above < STEPS:
            return False
        self._told = True
        return True

    def __str__(self) -> str:
        return f"the loss is {self._loss:.3g} after {self._best:.3g} before: this run may diverge"
