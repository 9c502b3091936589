"""The verdict on a night: the conditions for a job to have survived it."""

import pytest
from cluster.virtual.night_verdict import AGAIN, judged

pytestmark = pytest.mark.slow

EVENTS = [
    {"when": f"2026-01-01T00:{minute:02}:00+00:00", "kind": kind, "text": text}
    for minute, kind, text in [
        (0, "started", "the job starts on 4 hosts"),
        (2, "lost", "gone: i-1"),
        (3, "restart", f"4 {AGAIN}: i-2"),
        (3, "started", "the job starts on 4 hosts"),
        (9, "done", "the job is done"),
    ]
]
STEPS = [{"event": "StepDone", "step": step, "loss": 0.5} for step in (1, 2, 3)]
END = [{"step": 3, "top1": 0.9}]


def verdict(events=EVENTS, lost=("i-1",), steps=STEPS, end=END):
    return judged(events, lost, (steps, end), (STEPS, END), 3)


def test_a_job_that_came_through_says_when_and_how_well():
    found = verdict()
    assert found.through
    assert found.lines == (
        "1 of 1 lost workers were replaced, the last one 3.0 minutes after the start",
        "3 steps of 3, done 9.0 minutes after it",
        "accuracy 90.00%, of the same training undisturbed 90.00%; its loss has the same bits",
        "verdict: the job came through",
    )


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"lost": ("i-1", "i-2")}, "1 replacements of 2"),
        ({"steps": STEPS[:2]}, "not every step was taken once"),
        ({"steps": [*STEPS[:2], *STEPS[1:]]}, "not every step was taken once"),
        ({"end": []}, "the last step was not evaluated"),
        ({"end": [{"step": 3, "top1": 0.88}]}, "another accuracy"),
    ],
)
def test_a_night_that_cost_something_is_found(what, words):
    found = verdict(**what)
    assert not found.through
    assert found.lines[-1] == f"verdict: it did not come through: {words}"
