"""The steps at which checkpoints are due."""

from atomo.training.checkpoints.checkpoint_cadence import Cadence


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_checkpoint_is_due_at_steps_and_when_the_last_is_old():
    clock = Clock()
    cadence = Cadence(10, 60.0, clock)
    assert [step for step in range(1, 31) if cadence.due(step)] == [10, 20, 30]
    clock.now = 59.0
    assert not cadence.is_old
    clock.now = 60.0
    assert cadence.is_old
    assert not cadence.is_older(5.0)
    clock.now = 65.0
    assert cadence.is_older(5.0)
    cadence.begin()
    assert not cadence.is_old


def test_none_is_too_old_where_nobody_asks():
    clock = Clock()
    cadence = Cadence(10, 0.0, clock)
    clock.now = 1e9
    assert not cadence.is_old
