"""Fixtures that tests of plans, and of rounds of a given time, share."""

from collections.abc import Callable
from itertools import count

import pytest

from atomo.training.loop import paced_rounds
from atomo.training.plans import plan_trials


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are tried for one step a turn: how long they take is nothing to a test."""
    for name in ("TURNS", "FINAL_TURNS", "LEAST_STEPS", "MOST_STEPS"):
        monkeypatch.setattr(plan_trials, name, 1)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives each rank a clock by which each of its local steps takes the same time."""

    def use(*seconds: float) -> None:
        def clock_of(rank: int) -> Callable[[], float]:
            ticks = count(0.0, seconds[rank])
            return lambda: next(ticks)

        monkeypatch.setattr(paced_rounds, "clock_of", clock_of)

    return use
