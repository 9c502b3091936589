"""Measuring has a share of the run: by a clock that tests set, and among threads."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from support.harness import run_threads, settings, together

from atomo.analysis.budget import families
from atomo.codecs import make_codec
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.exchange import Direct
from atomo.options.grouping import cut_at, megabytes
from atomo.planning import Costs, Link, Profile, Scenario
from atomo.planning.compression_errors import CompressionErrors
from atomo.planning.costs import Cost
from atomo.planning.probe import SynchronizedTimer
from atomo.training.job.events import Event, Measuring, Started, from_json, to_json
from atomo.training.job.job import make_job
from atomo.training.job.plan import CodecPlan, MessagePlan, Plan
from atomo.training.planner import planner
from atomo.training.planner.planner import PlanGroup, plan_codecs
from atomo.training.plans import plan_trials
from atomo.training.plans.allowance import LEAST_S, LEAST_STEPS, LONGEST_S, Allowance, TimeLeft
from atomo.training.plans.codec_proposals import (
    CodecProposal,
    best_codecs,
    codecs_of,
    measured_families,
    propose_codecs,
)
from atomo.training.plans.job_probe import JobMeasurements, in_time
from atomo.training.plans.plan_trials import PlanCandidate, Turns, try_plans, worth_trying
from atomo.training.records.plan_records import keep_plan, kept_codecs
from atomo.transports import network

CPU = torch.device("cpu")


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_measuring_has_a_share_of_the_steps_that_are_left() -> None:
    long = Allowance(step_s=0.1, steps=2400, share=0.05)
    assert (long.run_s, long.limit_s) == (240, 12)
    assert long.pays
    assert long.text("codecs") == "measures codecs for at most 12 s, 5 % of some 4 min"
    assert replace(long, spent_s=2.0).limit_s == 10
    assert replace(long, steps=10**9).limit_s == LONGEST_S


def test_a_run_that_is_too_short_measures_nothing_and_says_so() -> None:
    least_s = LEAST_STEPS * 0.04 + LEAST_S
    short = Allowance(step_s=0.04, steps=220, share=0.1)
    assert short.limit_s < least_s == short.least_s
    assert not short.pays
    assert short.refusal("codecs").startswith("too short to measure codecs: 220 steps of 40 ms are")
    assert replace(short, share=0.5).pays
    assert not replace(short, share=0.5, spent_s=4.0).pays
    assert not replace(short, share=1e6, steps=0).pays


def test_what_is_left_follows_the_clock() -> None:
    clock = Clock()
    time_left = TimeLeft(10.0, clock)
    assert time_left.fits(10.0)
    clock.now += 4
    assert (time_left.elapsed_s, time_left.seconds) == (4, 6)
    assert time_left.fits(6.0)
    assert not time_left.fits(6.5)
    clock.now += 60
    assert time_left.seconds == 0


def test_no_codec_is_begun_that_may_not_end_in_time() -> None:
    clock, (transport,) = Clock(), network(1)
    alone = SynchronizedTimer(Direct(transport, 9.0))

    def measured_for(limit_s: float, costs_s: list[float]) -> int:
        def works() -> Iterator[float]:
            yield from costs_s

        count, time_left = 0, TimeLeft(limit_s, clock)
        for cost_s in in_time(alone, works(), time_left):
            clock.now += cost_s
            count += 1
        return count

    assert measured_for(10.0, [3.0] * 9) == 3  # a fourth would end at 12
    assert measured_for(10.0, [1.0, 6.0, 1.0, 1.0]) == 2  # another may be as long as the longest
    assert measured_for(0.0, [3.0] * 9) == 1  # one at least
    assert len([*in_time(alone, range(5), None)]) == 5


def plan(name: str, predicted_s: float = 0.1, **changes: str) -> PlanCandidate:
    words = {"code": name, "code_for": "", "memory": "none", "fusion": "layer", **changes}
    return PlanCandidate(name, **words, predicted_s=predicted_s)


def test_plans_that_change_the_same_are_one_plan() -> None:
    dense = plan("dense", code="sgd")
    mixed = plan("mixed + dgc", 0.05, code="sgd", memory="dgc")
    assert dense.changes == mixed.changes
    assert worth_trying([dense, mixed]) == []  # nothing to compare
    assert worth_trying([dense, mixed, plan("qsgd")]) == [dense, plan("qsgd")]
    assert plan("topk", memory="dgc").changes != plan("topk").changes
    assert plan("a", code="sgd", fusion="one").changes != dense.changes


def test_plans_are_tried_in_the_time_that_is_left(tmp_path: Path, monkeypatch) -> None:
    """A turn of two plans takes as long as the clock is told; nothing is trained."""
    clock, rounds = Clock(), list[int]()
    plans = [plan("sgd"), plan("qsgd", 0.08)]
    step_times: dict[str, list[float]] = {"sgd": [0.1] * 3, "qsgd": [0.05] * 3}

    def play_turn(
        draft: object, transport: object, device: object, plans, steps: int
    ) -> list[Turns]:
        rounds.append(len(plans))
        clock.now += 2.0
        return [[step_times[plan.name]] for plan in plans]

    monkeypatch.setattr(plan_trials, "play_turn", play_turn)
    monkeypatch.setattr(plan_trials, "end_trials", lambda draft, transport: None)
    job, (transport,) = make_job(settings(tmp_path, n=1, comm_type="Allgather"), 1), network(1)

    def tried(limit_s: float) -> list[str]:
        rounds.clear()
        time_left = TimeLeft(limit_s, clock)
        trials = try_plans(job, transport, torch.device("cpu"), plans, time_left)
        return [trial.name for trial in trials]

    assert tried(100.0) == ["qsgd", "sgd"]
    assert len(rounds) == 6
    assert tried(9.0) == ["qsgd", "sgd"]
    assert len(rounds) == 4  # a fifth would end at 10
    assert tried(5.0) == []  # two rounds: too few to tell a gain from chance
    assert tried(0.5) == []
    assert not rounds


def measured(run: Settings, codecs: int | None = None) -> JobMeasurements:
    """Returns measurements in which every codec costs the same, so that dense gradients are never
    slower.
    """
    candidates = families(run, "auto")
    job = make_job(replace(run, code="sgd", memory="none").resolved(), run.n)
    sizes = {name: parameter.shape for name, parameter in job.model.named_parameters()}
    gradient = {name: torch.zeros(shape) for name, shape in sizes.items()}
    count, codecs_measured = len(gradient), codecs_of(candidates)[:codecs]
    profile = Profile(0.005, tuple(0.005 * n / count for n in range(1, count + 1)), 0.005, gradient)
    costs = [
        Costs(str(codec), (Cost(0.01, 0.01, 1e6),) * count, Cost(), 1, False)
        for codec in codecs_measured
    ]
    errors = [CompressionErrors.of(codec, (0.0,) * count) for codec in codecs_measured]
    return JobMeasurements(Scenario(profile, 2, Link(1e6, 0.0)), (*costs,), (*errors,))


@pytest.mark.slow
def test_a_choice_that_is_dense_throughout_is_the_dense_one(tmp_path: Path) -> None:
    run = settings(tmp_path, code="auto")
    proposals = propose_codecs(run, families(run, "auto"), measured(run))
    plans = [plan.candidate(run) for plan in proposals]
    assert proposals[0].name == "dense"
    assert len({plan.changes for plan in plans}) == len(plans)
    assert [plan.name for plan in proposals if set(plan.codecs.codes.values()) == {"sgd"}] == [
        "dense"
    ]


def test_codecs_that_there_was_no_time_for_are_not_chosen(tmp_path: Path) -> None:
    run = settings(tmp_path, code="auto")
    candidates, measurements = families(run, "auto"), measured(run, 4)
    remaining = measured_families(candidates, measurements)
    assert [family.memory for family in remaining] == [
        "none",
        "dgc",
    ]  # each family has its share of four
    assert {str(codec) for family in remaining for codec in family.codecs} == {
        costs.spec for costs in measurements.costs
    }
    names = {
        code
        for family in propose_codecs(run, remaining, measurements)
        for code in family.codecs.codes.values()
    }
    assert names <= {costs.spec for costs in measurements.costs}


def test_what_was_not_tried_must_gain_more_than_predictions_are_off() -> None:
    dense, other = (
        CodecProposal(name, CodecPlan({"a": code}, "none", 0.0, 0.1, step_s, 0.1, 0.0, {}), "layer")
        for name, code, step_s in (("dense", "sgd", 0.1), ("qsgd", "qsgd", 0.09))
    )

    def best(step_s: float) -> dict[str, str]:
        faster = replace(other, codecs=replace(other.codecs, step_s=step_s))
        return best_codecs([dense, faster], ()).codes

    assert best(0.09) == {"a": "sgd"}
    assert best(0.07) == {"a": "qsgd"}


def chosen_by(run: Settings) -> tuple[list[CodecPlan | None], list[str]]:
    """Returns the plan of each rank, and the notes of rank 0."""
    transports, found, notes = network(run.n), [None] * run.n, list[str]()

    def body(rank: int) -> None:
        group = PlanGroup(transports[rank], CPU, run.timeout, note=notes.append)
        found[rank] = plan_codecs(run, group)

    bodies = [lambda rank=rank: body(rank) for rank in range(run.n)]
    together(bodies, lambda: transports[0].abort(1))
    return found, notes


@pytest.mark.slow
def test_all_ranks_of_a_short_run_take_dense_gradients_unmeasured(tmp_path, monkeypatch) -> None:
    for name in ("measure_job", "try_plans"):
        monkeypatch.setattr(planner, name, None)  # what is called fails
    run = settings(tmp_path, code="auto", auto_share=0.1, n=2, comm_type="Allgather")
    (first, other), notes = chosen_by(run)
    assert first == other
    assert first is not None
    assert set(first.codes.values()) == {"sgd"}
    assert first.applied(run).code == "sgd"
    assert first.text.startswith("auto: all dense, memory none: the run is too short to measure co")
    assert not notes
    event = Measuring("auto: measures codecs for at most 12 s, 5 % of some 4 min")
    assert from_json(to_json(event)) == event
    keep_plan(tmp_path, Plan(first))
    assert kept_codecs(run) == first
    lines: list[str] = []
    assert kept_codecs(replace(run, max_steps=10**6), (), lines.append) is None  # now it may pay
    assert "it is of --max-steps 20, and not 1000000" in lines[0]


@pytest.mark.slow
def test_messages_of_a_short_run_are_those_of_the_default(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(planner, "measure_job", None)
    events: list[Event] = []
    short = {"network": "FC", "n": 2, "comm_type": "Allgather", "code": "sgd", "max_steps": 2}
    run = settings(tmp_path, fusion="auto", auto_share=0.1, **short)
    run_threads(run, events.append)
    (line,) = (event.fusion for event in events if isinstance(event, Started))
    assert line.startswith(
        "fusion auto: 2 messages: the run is too short to measure messages: 2 st"
    )
    sizes = [4 * one.numel() for one in reversed([*make_job(run, 2).model.parameters()])]
    cuts = megabytes(run.fusion_mb).cuts(sizes)
    assert f'fusion = "{cut_at(cuts)}"' in (tmp_path / "settings.toml").read_text()


def test_a_record_keeps_why_nothing_was_measured() -> None:
    found = MessagePlan("auto", (1, 3), "of this", 0.0, 0.0, 0.0, 1.0, (), why="too short")
    assert MessagePlan.read(asdict(found)) == found
    chosen = CodecPlan({"a": "sgd"}, "none", 0.0, 0.1, 0.0, 0.1, 1.0, {}, why="too short")
    assert CodecPlan.read(asdict(chosen)) == chosen
    assert make_codec(chosen.codes["a"]).id == "sgd"
    with pytest.raises(ConfigError, match="--auto-share must be at least 0"):
        Settings(auto_share=-1.0)
