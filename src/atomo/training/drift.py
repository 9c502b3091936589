"""Whether steps have drifted so far from what was predicted that it pays to measure again.

The median of the last steps is held against the prediction, so that neither a pause nor a
checkpoint counts. Time enters as the seconds that steps took, and in no other way: equal steps
come to equal answers.
"""

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final, final

__all__ = ["RULES", "Drift", "Rules"]


@final
@dataclass(frozen=True)
class Rules:
    """How far is too far, and how often is too often."""

    window: int = 25
    """Steps whose median counts; more => surer, and later."""
    factor: float = 1.5
    """By which the median is off, either way; three in four predictions are within 1.3."""
    steps: int = 25
    """In a row for which it is."""
    rearm: float = 1.2
    """Within which steps come back to a prediction before it may call for another probe."""
    distance: int = 200
    """Steps from one probe to the next, at least."""
    share: float = 0.03
    """Of the time of training, past and still to come, that probes may take."""


RULES: Final = Rules()


@final
class Drift:
    """Takes in the steps of a run; rank 0 has one. It forgets on a resume, but for the plan."""

    def __init__(
        self, expected_s: float, cost_s: float, spent_s: float = 0.0, rules: Rules = RULES
    ) -> None:
        """What watches steps from here on.

        Args:
            expected_s: what one was predicted to take; 0: nobody knows, and nothing is a drift.
            cost_s: what a probe takes.
            spent_s: on probes so far.
            rules: when to probe.
        """
        self.expected_s, self.rules = expected_s, rules
        self.measured_s = 0.0
        """The median of the last steps; 0 before there are enough of them."""
        self._cost_s, self._spent_s, self._trained_s = cost_s, spent_s, 0.0
        self._times: deque[float] = deque(maxlen=rules.window)
        self._since = self._beyond = 0  # steps from the last probe on; in a row that are off
        self._armed = True

    def calls(self, step_s: float, left: int) -> bool:
        """Takes in a step, with so many left; whether it is time to probe."""
        self._times.append(step_s)
        self._trained_s += step_s
        self._since += 1
        if not self.expected_s or len(self._times) < self.rules.window:
            return False
        self.measured_s = statistics.median(self._times)
        if not self._armed:
            self._rearm()
        self._beyond = self._beyond + 1 if self._armed and self._off > self.rules.factor else 0
        return self._beyond >= self.rules.steps and self._pays(left)

    def probed(self, expected_s: float, cost_s: float) -> None:
        """A probe was taken, by which a step takes so long."""
        self.expected_s, self._cost_s = expected_s, cost_s
        self._spent_s += cost_s
        self._times.clear()
        self._since = self._beyond = 0
        self._armed = False

    @property
    def _off(self) -> float:
        """By what factor, either way."""
        return max(self.measured_s / self.expected_s, self.expected_s / max(self.measured_s, 1e-12))

    def _rearm(self) -> None:
        """Once steps are as predicted; or, if a new probe does not explain them, at what they take:
        then it is the model that is off and not the machine that has changed, and to probe once
        more would find the same.
        """
        if self._off > self.rules.rearm:
            if self._since < self.rules.window + self.rules.steps:
                return
            self.expected_s = self.measured_s
        self._armed = True

    def _pays(self, left: int) -> bool:
        """Whether a probe may be taken now, and has enough steps left to be of use to."""
        share = self.rules.share
        return (
            left > 1
            and self._since >= self.rules.distance
            and self._spent_s + self._cost_s <= share * self._trained_s
            and self._cost_s <= share * left * self.measured_s
        )
