"""Fixtures that tests of measured plans share."""

import pytest

from atomo.training.plans import plan_trials


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are tried for one step a turn: how long they take is nothing to a test."""
    for name in ("TURNS", "FINAL_TURNS", "LEAST_STEPS", "MOST_STEPS"):
        monkeypatch.setattr(plan_trials, name, 1)
