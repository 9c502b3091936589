"""Ranks that measure again in the middle of a run: all go on alike, and nothing that was kept is
lost.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import PATIENCE_S, settings, together
from support.selection import slow_but
from torch import Tensor

from atomo.analysis.budget import families
from atomo.codecs import Codec, make_codec
from atomo.config.file import read_settings
from atomo.config.identity import record
from atomo.config.settings import Settings
from atomo.fusion import shapes
from atomo.planning import Costs, Link, Profile, Scenario
from atomo.planning.compression_errors import CompressionErrors
from atomo.planning.costs import Cost
from atomo.training import rank
from atomo.training.checkpoints.checkpoint import Snapshot, load, save
from atomo.training.job.events import Caution, Event, ProbedAgain, Started, StepDone
from atomo.training.job.job import Job, make_job
from atomo.training.job.plan import CodecPlan, MessagePlan, Plan, TrialResult, planned_settings
from atomo.training.loop.worker_state import restore, worker_state
from atomo.training.planner import planner, replan
from atomo.training.planner.replan import weigh_plans
from atomo.training.planner.replan_loop import DriftRules, ReplanLoop
from atomo.training.plans.codec_proposals import codecs_of
from atomo.training.plans.job_probe import JobMeasurements
from atomo.training.plans.message_proposals import tensor_codecs
from atomo.training.plans.plan_trials import try_plans
from atomo.training.rank import run_rank
from atomo.training.records.plan_records import (
    CODECS_FILE,
    MESSAGES_FILE,
    job_hash,
    keep_plan,
    read_codecs,
)
from atomo.training.records.run_recorder import RunRecorder
from atomo.transports import network

BEFORE, AFTER = "topk(ratio=0.1)", "efsignsgd"
pytestmark = pytest.mark.usefixtures("short_trials")
PAUSE = 4  # the step after which ranks measure again
RULES = DriftRules(window=2, steps=2, distance=PAUSE, share=1e12)
PASS_S = 0.01
STEP = StepDone(
    step=1, epoch=0.05, loss=2.5, accuracy=0.25, lr=0.02, workers=2, images_per_s=1.0, up_bytes=1,
    down_bytes=1, dense_bytes=1, step_s=0.9, compute_s=0.1, encode_s=0.2, send_s=0.1, wait_s=0.1,
    decode_s=0.1, update_s=0.1, eta_s=75.0,
)  # fmt: skip
CASES = [{"comm_type": "ParameterServer", "n": 3}, {"comm_type": "Allgather", "n": 2}]


def measured(best: str = AFTER, others_bytes: float = 1e6) -> Callable[..., JobMeasurements]:
    """Returns a function that gives measurements in which the codec `best` sends next to nothing,
    and the others send many bytes for each tensor, over links of 1 MB/s.
    """

    def measure(
        job: Job, transport: object, device: object, codecs: Sequence[Codec[Any]], **rest: object
    ) -> JobMeasurements:
        tensors = shapes(job.model)
        count = len(tensors)
        gradient = {name: torch.zeros(shape) for name, shape in tensors}
        ready = tuple(PASS_S / 2 * tensor / count for tensor in range(1, count + 1))
        profile = Profile(PASS_S / 2, ready, PASS_S / 2, gradient)
        costs = [
            Costs(str(c), (cost_of(c, best, others_bytes),) * count, Cost(), 1, False)
            for c in codecs
        ]
        errors = tuple(CompressionErrors.of(c, (0.0,) * count) for c in codecs)
        return JobMeasurements(Scenario(profile, job.workers, Link(1e6, 0.0)), tuple(costs), errors)

    return measure


def cost_of(codec: Codec[Any], best: str, others_bytes: float) -> Cost:
    return Cost(0.0, 0.0, 1.0 if codec == make_codec(best) else others_bytes)


def auto(folder: Path, **changes: Any) -> Settings:
    """A run whose codecs are known, with a prediction that no step can hold."""
    short = {"code": "auto", "network": "FC", "threads": 1, "max_steps": 8, **CASES[1]}
    run = settings(folder, **{**short, **changes})
    if run.code == "auto" and not (folder / CODECS_FILE).exists():
        tensors = shapes(make_job(replace(run, code="sgd", memory="none"), run.n).model)
        codes = {name: BEFORE for name, shape in reversed(tensors) if len(shape) > 1}
        keep_plan(
            folder, Plan(CodecPlan(codes, "dgc", 0.1, 0.5, 1e-9, 1e-9, 0.5, planned_settings(run)))
        )
    return run


def as_predicted(*words: Any) -> tuple[TrialResult, ...]:
    """Tries plans in real steps, and reports the predicted times as the measured ones."""
    trials = [replace(trial, taken_s=trial.predicted_s) for trial in try_plans(*words)]
    return tuple(sorted(trials, key=lambda trial: trial.taken_s))


def run_ranks(run: Settings, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Runs the whole job, with the work of ranks before, between and after plans; returns rank 0's
    events.
    """
    lock, built, events = threading.Lock(), threading.Barrier(run.n), list[Event]()

    def one_by_one(settings: Settings, ranks: int) -> Job:
        # Threads share the generator that weights are drawn from, which steps seed as well.
        with lock:
            job = make_job(settings, ranks)
        built.wait(PATIENCE_S)
        return job

    monkeypatch.setattr(planner, "make_job", one_by_one)
    monkeypatch.setattr(planner, "try_plans", as_predicted)
    transports = network(run.n)
    bodies = [
        partial(run_rank, run, transport, events.append, lambda: False) for transport in transports
    ]
    together(bodies, lambda: transports[0].abort(1))
    return events


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """True if two states have the same bits."""
    return first.keys() == second.keys() and all(
        tensor.equal(second[name]) for name, tensor in first.items()
    )


@pytest.mark.long(cases=("Allgather",))
@pytest.mark.parametrize("case", slow_but(CASES[1:], CASES), ids=lambda case: case["comm_type"])
def test_steps_that_are_not_as_predicted_have_other_codecs_and_what_was_kept(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself checks at its end that replicas stay equal."""
    held: list[dict[str, Tensor]] = []

    def spied(state: Any, memory: Any, model: Any) -> None:
        restore(state, memory, model)
        held.append({name: tensor.clone() for name, tensor in worker_state(memory, model).items()})

    monkeypatch.setattr(
        f"atomo.training.loop.{'worker' if case['n'] == 3 else 'replica'}.restore", spied
    )
    monkeypatch.setattr(replan, "measure_job", measured())
    monkeypatch.setattr(rank, "ReplanLoop", partial(ReplanLoop, rules=RULES))
    run = auto(tmp_path, **case)
    events = run_ranks(run, monkeypatch)
    # Without a master all must know of an end one step ahead.
    pause = PAUSE + (case["n"] == 2)
    (again,) = (event for event in events if isinstance(event, ProbedAgain))
    assert (again.step, again.changed, again.expected_s) == (pause + 1, True, 1e-9)
    assert again.step_s < 0.5 * again.stays_s
    assert f"from step {pause + 1} on\nauto: 3 tensors efsignsgd, memory dgc" in again.text
    assert sum(isinstance(event, Started) for event in events) == 1
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [step.step for step in steps] == [*range(1, 9)]
    assert [step.plan_since for step in steps] == [1] * pause + [pause + 1] * (8 - pause)
    assert steps[-1].up_bytes < 0.5 * steps[0].up_bytes
    # What every worker goes on with is what it had, in every bit.
    kept = load(tmp_path, pause).workers
    assert len(held) == len(kept) == 2
    for mine in kept:
        assert any(same(mine, one) for one in held)
        assert any(bool(tensor.any()) for tensor in mine.values())
    kept_as = json.loads((tmp_path / CODECS_FILE).read_text())
    assert (kept_as["since"], {*kept_as["codes"].values()}) == (pause + 1, {AFTER})
    assert [{*one["codes"].values()} for one in kept_as["earlier"]] == [{BEFORE}]
    assert read_settings([tmp_path / "settings.toml"])["code"] == AFTER
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["plan_since"] for line in lines] == [step.plan_since for step in steps]


@pytest.mark.long(cases=("Allgather",))
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["comm_type"])
def test_a_run_that_stops_after_a_switch_and_goes_on_has_the_same_bits(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replan, "measure_job", measured())
    monkeypatch.setattr(ReplanLoop, "_drifts", lambda self, done: done.step == PAUSE)
    folders = [tmp_path / "once", tmp_path / "twice"]
    for folder, ends in zip(folders, ([8], [6, 8]), strict=True):
        for end in ends:
            events = run_ranks(auto(folder, max_steps=end, **case), monkeypatch)
    assert isinstance(events[0], Started)
    assert events[0].first_step == 7
    assert "efsignsgd" in events[0].chosen
    one, other = (load(folder, 8) for folder in folders)
    assert all(map(same, one.workers, other.workers))
    assert same(one.model, other.model)
    assert same(one.optimizer, other.optimizer)


@pytest.mark.long(cases=("Allgather",))
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["comm_type"])
def test_other_messages_carry_on_what_was_kept(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A codec that sees each entry by itself makes no difference between messages, and a memory
    that lost anything would.
    """
    monkeypatch.setattr(replan, "measure_job", measured(others_bytes=4000.0))
    monkeypatch.setattr(ReplanLoop, "_drifts", lambda self, done: done.step == PAUSE)
    plain = {"code": "bf16", "memory": "residual", "fusion": "auto", **case}
    run = auto(tmp_path / "changed", **plain)
    job = make_job(run, run.n)
    tensors = len(shapes(job.model))
    single = MessagePlan(
        "auto", (tensors,), job_hash(job, "auto"), 1.0, 1.0, 1.0, 0.5, (), step_s=1e-9
    )
    keep_plan(tmp_path / "changed", Plan(messages=single))
    events = run_ranks(run, monkeypatch)
    (again,) = (event for event in events if isinstance(event, ProbedAgain))
    assert again.changed
    kept_as = json.loads((tmp_path / "changed" / MESSAGES_FILE).read_text())
    assert len(kept_as["cuts"]) > 1
    assert [before["cuts"] for before in kept_as["earlier"]] == [[tensors]]
    assert read_settings([tmp_path / "changed" / "settings.toml"])["fusion"] == again_as(kept_as)
    run_ranks(auto(tmp_path / "same", **{**plain, "fusion": "one"}), monkeypatch)
    changed, same_messages = (load(tmp_path / name, 8) for name in ("changed", "same"))
    assert same(changed.model, same_messages.model)
    assert same(changed.optimizer, same_messages.optimizer)
    assert all(map(same, changed.workers, same_messages.workers))
    assert any(bool(residual.any()) for residual in changed.workers[0].values())


def again_as(kept_as: Mapping[str, Any]) -> str:
    return f"cuts:{','.join(map(str, kept_as['cuts']))}"


def test_who_finds_a_new_prediction_off_as_well_says_so_once(tmp_path: Path) -> None:
    events: list[Event] = []
    run = auto(tmp_path)
    chosen = read_codecs(tmp_path / CODECS_FILE, 0)
    assert chosen is not None
    job = replace(make_job(chosen.applied(run), run.n), plan=Plan(chosen))
    loop = ReplanLoop(run, job, network(run.n)[0], torch.device("cpu"), events.append, RULES)
    loop._drift.probed(0.5, 0.1)
    for step in range(1, 20):
        loop._drifts(replace(STEP, step=step, step_s=0.9))
    (caution,) = events
    assert isinstance(caution, Caution)
    assert caution.text.startswith("steps take 900.0 ms where 500.0 were predicted from the last")


def test_a_run_that_measures_again_goes_on_from_where_it_is(tmp_path: Path) -> None:
    """The run does not resume from a later checkpoint, which an earlier run left there before
    --resume never.
    """
    run = settings(tmp_path, network="FC", code="sgd", resume="never", n=2, comm_type="Allgather")
    for step in (4, 9):
        save(tmp_path, Snapshot(step, {}, {}, (), record(run)))
    job = make_job(run, 2)
    assert RunRecorder(job, pytest.fail).snapshot() is None
    again = ProbedAgain(5, 1.0, 1.0, 1.0, 1.0, False, 1.0, "")
    snapshot = RunRecorder(replace(job, again=again), pytest.fail).snapshot()
    assert snapshot is not None
    assert snapshot.step == 4


def test_who_goes_back_to_before_a_switch_has_the_codecs_of_then(tmp_path: Path) -> None:
    said_then = {"network": "FC"}
    first = CodecPlan({"a": BEFORE}, "dgc", 0.1, 0.5, 1.0, 1.0, 1.0, said_then)
    later = [
        replace(first, codes={"a": code}, since=since) for code, since in ((AFTER, 5), ("bf16", 9))
    ]
    for plan in (first, *later):
        keep_plan(tmp_path, Plan(plan))
    path = tmp_path / CODECS_FILE
    plans = [read_codecs(path, step) for step in (0, 3, 4, 7, 8, 100)]
    assert plans == [first, first, later[0], later[0], later[1], later[1]]
    keep_plan(tmp_path, Plan(later[0]))  # a run went back there: what came later is another's
    assert read_codecs(path, 100) == later[0]
    assert read_codecs(path, 0) == first


@pytest.mark.slow
def test_what_gains_next_to_nothing_is_left_alone(tmp_path: Path) -> None:
    run = auto(tmp_path)
    chosen = read_codecs(tmp_path / CODECS_FILE, 0)
    assert chosen is not None
    before = replace(chosen, trials=(TrialResult("dense", 1.0, 9.0),))
    job = replace(make_job(chosen.applied(run), run.n), plan=Plan(before))
    candidates = families(run, "dgc")
    codecs = codecs_of(candidates)
    for others_bytes, better in ((1.0, False), (4000.0, True)):
        measurements = measured(others_bytes=others_bytes)(job, None, None, codecs)
        stays, best = weigh_plans(run, job, candidates, codecs, measurements)
        assert (best.step_s * 1.02 < stays.step_s) == better
        assert stays.plan.codecs == replace(chosen, step_s=stays.step_s)
    assert {*map(str, tensor_codecs(job))} == {BEFORE}


@pytest.mark.slow
def test_ranks_go_on_if_the_new_plan_is_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan is tried then, and the ranks that wait for trials learn so."""
    monkeypatch.setattr(replan, "measure_job", measured(best=BEFORE))
    monkeypatch.setattr(ReplanLoop, "_drifts", lambda self, done: done.step == PAUSE)
    events = run_ranks(auto(tmp_path, max_steps=6), monkeypatch)
    (again,) = (event for event in events if isinstance(event, ProbedAgain))
    assert not again.changed
    assert sum(isinstance(event, StepDone) for event in events) == 6
