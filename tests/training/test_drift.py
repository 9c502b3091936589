"""The detection of drift: a pure function of the times of steps."""

from atomo.training.planner.replan_loop import DriftDetector, DriftRules

RULES = DriftRules(window=3, factor=1.5, steps=2, rearm=1.2, distance=6, share=0.1)
LEFT = 10_000


def calls(drift: DriftDetector, *times: float, left: int = LEFT) -> list[int]:
    """Returns the steps, counted from 1, at which it asks for a probe."""
    return [step for step, step_s in enumerate(times, 1) if drift.calls(step_s, left)]


def test_steps_as_predicted_or_nearly_so_call_for_nothing() -> None:
    assert not calls(DriftDetector(1.0, 0.1, rules=RULES), *[1.4] * 50)
    assert not calls(DriftDetector(1.0, 0.1, rules=RULES), *[0.7] * 50)


def test_a_pause_is_no_drift() -> None:
    assert not calls(DriftDetector(1.0, 0.1, rules=RULES), *[1.0, 1.0, 60.0] * 20)


def test_steps_that_are_longer_or_shorter_for_long_enough_are() -> None:
    for step_s in (1.6, 0.6):
        # Of the three last two are off at the second such step, and the next makes two in a row.
        assert calls(DriftDetector(1.0, 0.1, rules=RULES), *[1.0] * 10, *[step_s] * 3) == [13]


def test_nobody_knows_what_nobody_predicted() -> None:
    assert not calls(DriftDetector(0.0, 0.1, rules=RULES), *[9.0] * 50)


def test_a_probe_does_not_follow_another_at_once() -> None:
    drift = DriftDetector(1.0, 0.1, rules=RULES)
    assert calls(drift, *[2.0] * 8)[0] == RULES.distance
    drift.probed(2.0, 0.1)
    assert not calls(drift, *[2.0] * 3, *[4.0] * 2)
    assert calls(drift, 4.0) == [1]


def test_probes_take_a_share_of_the_time_at_most() -> None:
    drift = DriftDetector(1.0, cost_s=2.0, spent_s=2.0, rules=RULES)
    assert calls(drift, *[2.0] * 30)[0] == 20  # by then four seconds are a tenth
    assert not calls(
        DriftDetector(1.0, 2.0, rules=RULES), *[2.0] * 50, left=9
    )  # nor have they time to pay
    assert calls(DriftDetector(1.0, 2.0, rules=RULES), *[2.0] * 50, left=10)
    assert not calls(DriftDetector(1.0, 0.0, rules=RULES), *[2.0] * 50, left=1)


def test_what_a_new_probe_does_not_explain_calls_for_no_other() -> None:
    """The model is wrong there: later steps are compared with the measured time."""
    drift = DriftDetector(1.0, 0.1, rules=RULES)
    assert calls(drift, *[2.0] * 6) == [6]
    drift.probed(1.0, 0.1)
    assert not calls(drift, *[2.0] * 100)
    assert drift.expected_s == 2.0
    assert calls(drift, *[4.0] * 3) == [3]


def test_steps_that_come_back_to_a_prediction_are_held_against_it() -> None:
    drift = DriftDetector(1.0, 0.1, rules=RULES)
    assert calls(drift, *[2.0] * 6) == [6]
    drift.probed(2.0, 0.1)
    assert not calls(drift, *[2.3] * 20)
    assert drift.expected_s == 2.0
    assert calls(drift, *[3.1] * 3) == [3]
