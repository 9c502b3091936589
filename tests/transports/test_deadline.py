"""Waits for an event that comes soon, and for one that may never come."""

import pytest

from atomo.transports import deadline
from atomo.transports.deadline import Deadline


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """Returns the pauses, which take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(deadline.time, "sleep", pauses.append)
    return pauses


def test_who_rests_looks_seldom_and_never_spins(slept):
    answers = iter([None, None, None, "a word"])
    assert Deadline(600.0, pause_s=0.5).poll(lambda: next(answers)) == "a word"
    assert slept == [0.5] * 3


def test_who_waits_for_what_comes_soon_pauses_only_once_it_takes_long(slept):
    looks = deadline.YIELDS + 2
    answers = iter([None] * looks + [1])
    assert Deadline(600.0).poll(lambda: next(answers)) == 1
    assert len(slept) == looks - deadline.YIELDS + 1
    assert max(slept) <= deadline.MAX_PAUSE_S
