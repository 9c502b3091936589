"""Time that a job may spend on measurements before its first step.

The plans of `--code auto` and `--fusion auto` gain a share of each step, and cost time once. So a
few steps without a plan are timed first, and measurements may take a share of the time of all
remaining steps. If that is less than the shortest useful measurement takes, nothing is measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

__all__ = ["LONGEST_S", "Allowance", "TimeLeft", "rough"]

LONGEST_S: Final = 300.0  # enough for all measurements
LEAST_STEPS: Final = 20  # time of the passes, one codec and a trial, in steps
LEAST_S: Final = 1.0  # time of the links, for steps of any length
MINUTE_S, HOUR_S = 60.0, 3600.0


@final
class TimeLeft:
    """A time limit that starts with the construction of this object."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._limit_s, self._began = clock, limit_s, clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def seconds(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._limit_s - self.elapsed_s)

    def fits(self, next_s: float) -> bool:
        """Returns True if work of `next_s` seconds ends before the limit."""
        return next_s <= self.seconds


@final
@dataclass(frozen=True)
class Allowance:
    """Time that a job may spend on measurements, and its derivation."""

    step_s: float
    """Measured seconds of a step without any plan."""
    steps: int
    """Number of remaining steps."""
    share: float
    """Share of the time of these steps that measurements may take."""
    spent_s: float = 0.0
    """Seconds that measurements took already."""

    @property
    def run_s(self) -> float:
        """Seconds that the run will take."""
        return self.steps * self.step_s

    @property
    def limit_s(self) -> float:
        """Seconds that measuring may take."""
        return min(LONGEST_S, max(0.0, self.share * self.run_s - self.spent_s))

    @property
    def least_s(self) -> float:
        """Seconds that the least useful measurement takes."""
        return LEAST_STEPS * self.step_s + LEAST_S

    @property
    def pays(self) -> bool:
        """True if there is time for a useful measurement."""
        return self.limit_s >= self.least_s

    def text(self, subject: str) -> str:
        """Returns a line that announces the measurements.

        >>> Allowance(0.1, 2400, 0.05).text("codecs")
        'measures codecs for at most 12 s, 5 % of some 4 min'
        """
        share = self.limit_s / self.run_s if self.run_s else 0.0
        return (
            f"measures {subject} for at most {rough(self.limit_s)}, {percent(share)} of some "
            + (rough(self.run_s))
        )

    def refusal(self, subject: str) -> str:
        """Returns why nothing is measured.

        >>> Allowance(0.04, 220, 0.1).refusal("codecs").partition(": ")[2]
        '220 steps of 40 ms are some 9 s, of which measuring may take 10 % and takes at least 2 s'
        """
        return (
            f"too short to measure {subject}: {self.steps} step{'s' * (self.steps != 1)} of "
            f"{1e3 * self.step_s:.0f} ms are some {rough(self.run_s)}, of which measuring may take "
            f"{percent(self.share)} and takes at least {rough(self.least_s)}"
        )


def rough(seconds: float) -> str:
    """Formats a time roughly, for people.

    >>> rough(4.2), rough(240.0), rough(9000.0)
    ('4 s', '4 min', '2.5 h')
    """
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.3g} h"


def percent(share: float) -> str:
    """Formats a share in percent.

    >>> percent(0.05), percent(0.0012)
    ('5 %', '0.12 %')
    """
    return f"{100 * share:.2g} %"
