"""Plans that are tried in real steps: which, by whom, and without a trace."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support.harness import settings, together
from support.selection import slow_but

from atomo.fusion.flow import Flow, Times
from atomo.training.job.job import make_job
from atomo.training.job.plan import MessagePlan, TrialResult, expected, trials_text
from atomo.training.plans.message_proposals import after_trials
from atomo.training.plans.plan_trials import (
    PlanCandidate,
    finalists,
    join_trials,
    try_plans,
    winner_first,
    worth_trying,
)
from atomo.transports import network

CASES = [
    {"n": 3, "comm_type": "ParameterServer"},
    *({"n": n, "comm_type": "Allgather"} for n in (2, 1)),
]
CPU = torch.device("cpu")


def called(case: dict[str, object]) -> str:
    return f"{case['comm_type']}-{case['n']}"


def plan(name: str, predicted_s: float, **changes: str) -> PlanCandidate:
    words = {"code": "sgd", "code_for": "", "memory": "none", "fusion": "layer", **changes}
    return PlanCandidate(name, **words, predicted_s=predicted_s)


def names(plans: list[PlanCandidate]) -> str:
    return "".join(plan.name for plan in plans)


def test_what_may_turn_out_best_is_tried_and_what_the_others_are_held_against() -> None:
    times = {"a": 0.2, "b": 0.12, "c": 0.1, "d": 0.13, "e": 0.14, "f": 0.15, "g": 0.9}
    near = [plan(name, time, code=name) for name, time in times.items()]
    assert names(worth_trying(near)) == "abcde"  # in their order, the first in spite of better ones
    assert names(worth_trying([plan("a", 0.3, code="a"), *near[1:4]])) == "bcd"  # too far off
    assert worth_trying(near[2:3]) == worth_trying([near[2], near[6]]) == []  # nothing to compare


def test_steps_that_take_long_are_tried_with_fewer_plans() -> None:
    slow = [plan(name, time, code=name) for name, time in zip("abc", (0.5, 0.4, 0.3), strict=True)]
    assert names(worth_trying(slow)) == "abc"
    slow = [replace(plan, predicted_s=1.5 * plan.predicted_s) for plan in slow]
    assert names(worth_trying(slow)) == "ac"  # the first is what the others are held against
    assert worth_trying([replace(plan, predicted_s=10 * plan.predicted_s) for plan in slow]) == []


def test_the_first_and_the_fastest_have_more_turns() -> None:
    assert finalists([[[9.0]], [[2.0]], [[1.0]], [[3.0]]]) == [0, 2, 1]
    assert finalists([[[1.0]], [[2.0]]]) == [0, 1]


def winner(*turns: list[list[float]]) -> str:
    plans = [(name, 1.0) for name in "abc"[: len(turns)]]
    return winner_first(plans, turns)[0].name


def test_the_first_stays_unless_another_gains_enough_in_most_turns() -> None:
    even = [[1.0, 1.0]] * 6
    assert winner(even, [[0.99, 0.99]] * 6) == "a"
    assert winner(even, [[0.9, 0.9]] * 6) == "b"
    assert winner(even, [[0.9, 0.9]] * 4 + [[1.1, 1.1]] * 2) == "b"
    mostly = [[1.2, 1.2, 0.5]] * 3 + [[0.5, 0.5, 1.2]] * 3  # faster by its median, in half of them
    assert winner([[1.0, 1.0, 1.0]] * 6, mostly) == "a"
    assert winner(even, [[0.9, 0.9]] * 6, [[0.1, 0.1]] * 2) == "b"  # who is out is out


def test_a_line_says_what_became_of_plans() -> None:
    trials = winner_first([("a", 1.0), ("b", 2.0)], [[[1.0], [1.0]], [[0.5], [0.5]]])
    assert [trial.name for trial in trials] == ["b", "a"]
    assert expected(trials, 7.0) == 0.5
    assert expected((), 7.0) == 7.0
    assert trials_text(trials) == "; 500.0 in trial steps (a 1000.0)"
    assert trials_text(winner_first([], [])) == ""
    assert TrialResult.read(asdict(trials[0])) == trials[0]


def test_messages_are_those_that_steps_were_shortest_with() -> None:
    flow = Flow((0.1, 0.2), (Times(0.0, 1.0, 0.0),) * 2, Times(0.0, 0.5, 0.0), 0.0)
    messages = MessagePlan("auto", (1, 2), "of this", flow.done((1, 2)), 3.0, 2.0, 1.0, ())
    plans = {(1, 2): plan("auto", 1.0), (2,): plan("one", 1.5)}
    trials = (TrialResult("one", 1.5, 1.0), TrialResult("auto", 1.0, 2.0))
    best = after_trials(messages, plans, trials, flow)
    assert (best.cuts, best.step_s, best.trials) == ((2,), 1.5, trials)
    assert best.exchange_s == flow.done((2,))
    assert MessagePlan.read(asdict(best)) == best
    assert after_trials(messages, plans, (), flow).cuts == (1, 2)


@pytest.mark.long
@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize(
    "case", slow_but(CASES[1:], CASES), ids=lambda case: f"{case['comm_type']}-{case['n']}"
)
def test_trials_leave_no_trace(case: dict[str, object], tmp_path: Path) -> None:
    """A trial changes no weights, no statistics, no random numbers, and no file."""
    run = settings(tmp_path, network="networks:normed", batch_size=8, **case)
    transports = network(run.n)
    jobs = [make_job(run, run.n) for _ in transports]
    before = [{name: one.clone() for name, one in job.model.state_dict().items()} for job in jobs]
    plans = [
        plan("dense", 1e-3),
        plan("topk", 1e-3, code="topk(ratio=0.1)", memory="dgc", fusion="one"),
        plan("mixed", 1e-3, code="qsgd", code_for="svd(rank=2): 4.weight"),
    ]
    drawn, trials = torch.random.get_rng_state(), list[TrialResult]()
    there = {path.name for path in tmp_path.iterdir()}
    parts = [lambda: trials.extend(try_plans(jobs[0], transports[0], CPU, plans))]
    parts += [
        lambda job=job, one=one: join_trials(job, one, CPU)
        for job, one in zip(jobs[1:], transports[1:], strict=True)
    ]
    together(parts, lambda: transports[0].abort(1))
    assert {one.name for one in trials} == {"dense", "topk", "mixed"}
    assert all(one.taken_s > 0 for one in trials)
    for job, was in zip(jobs, before, strict=True):
        assert all(tensor.equal(was[name]) for name, tensor in job.model.state_dict().items())
    if run.n == 1:  # threads of several ranks share the generator
        assert drawn.equal(torch.random.get_rng_state())
    assert {path.name for path in tmp_path.iterdir()} == there
