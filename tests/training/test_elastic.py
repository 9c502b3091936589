"""Whole runs without a master in which ranks die: those that are left go on, alike in every bit,
and so do spares that take the places of the dead.
"""

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from support.crashing_transport import CrashingTransport
from support.harness import settings, together
from support.networks import SMALL
from support.selection import long_but, slow_but

from atomo.errors import PeerLost, TooFewWorkers
from atomo.training.checkpoints.checkpoint import load, steps
from atomo.training.job.events import Caution, Ended, Event, Started
from atomo.training.job.job import Job, make_job
from atomo.training.loop import paced_rounds, replicated
from atomo.training.loop.exchange_setup import cautions_of, make_elastic_group
from atomo.training.loop.replica import ReplicaStep
from atomo.training.loop.replicated import Replicated
from atomo.training.rank import make_end
from atomo.transports import LocalTransport, Transport, network

STEPS = 8


def dies_at(end: object, step: int, wire: LocalTransport) -> None:
    """Makes a rank die once its step begins."""
    assert isinstance(end, Replicated)
    replica, plain = end._replica, end._replica.take_step

    def planted(**asks: Any) -> ReplicaStep:
        if replica.step + 1 == step:
            wire.exit_rank(137)
            raise PeerLost(wire.rank, "dying, itself")
        return plain(**asks)

    replica.take_step = planted  # type: ignore[method-assign]


def trained(
    folder: Path,
    breaths: Mapping[int, int],
    deaths: Mapping[int, int] = MappingProxyType({}),
    **changes: object,
) -> list[Event]:
    """Runs four ranks, of which some die after a number of messages, or at a step; returns the
    events.
    """
    common = {"n": 4, "network": SMALL, "batch_size": 8, "max_steps": STEPS, "eval_freq": 3}
    chosen = settings(folder, **(common | changes))
    wires, events = network(chosen.processes), list[Event]()
    ends: list[Transport] = [*wires]
    for rank, count in breaths.items():
        ends[rank] = CrashingTransport(wires[rank], count)

    def body(transport: Transport, job: Job) -> None:
        end = make_end(job, transport, torch.device("cpu"), events.append, lambda: False)
        if transport.rank in deaths:
            dies_at(end, deaths[transport.rank], wires[transport.rank])
        try:
            end.run()
        except PeerLost as lost:
            if transport.rank not in (*breaths, *deaths) or lost.rank not in (transport.rank, -1):
                raise

    # One after the other: threads have one generator for the initial weights.
    jobs = [make_job(chosen, len(ends)) for _ in ends]
    pairs = zip(ends, jobs, strict=True)
    together([lambda e=e, j=j: body(e, j) for e, j in pairs], lambda: wires[0].abort(1))
    return events


CASES = [
    {"comm_type": "Allgather", "code": "dgc(ratio=0.1)"},
    {"comm_type": "Allreduce", "code": "bf16", "memory": "residual"},
    {"comm_type": "Allgather", "code": "svd(rank=2)", "fusion": "layer"},
    {"comm_type": "Allreduce", "code": "sgd"},
]


SPARED = [
    {"comm_type": "Allgather", "code": "dgc(ratio=0.1)", "ema_decay": 0.9},
    {"comm_type": "Allreduce", "code": "bf16", "memory": "residual", "optimizer": "adam"},
    {"comm_type": "Allgather", "code": "qsgd", "network": "networks:normed", "weight_decay": 0.01},
]


@pytest.mark.parametrize("case", slow_but(CASES[:2], CASES), ids=str)
def test_a_run_outlives_its_workers(case, tmp_path, monkeypatch):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)  # which fails where hashes differ
    dice = random.Random(str(case))
    breaths = {rank: dice.randint(5, 40) for rank in (1, 3)}
    events = trained(tmp_path, breaths, min_workers=1, **case)
    assert events[-1] == Ended(STEPS, "done")
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert {note.split(";")[0] for note in notes if "gone" in note} == {
        "rank 1 is gone",
        "rank 3 is gone",
    }
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    for line in lines:
        assert line["asked"] == line["workers"] + line["lost"]
        assert line["images_asked"] == line["images_used"] + line["images_lost"] == 4 * 8
    assert (lines[-1]["asked"], lines[-1]["lost"], lines[-1]["images_lost"]) == (2, 0, 0)
    assert len(load(tmp_path, STEPS).workers) == 2


ROUNDS = [
    {"comm_type": "Allgather", "code": "topk(ratio=0.1)"},
    {"comm_type": "Allreduce", "code": "bf16", "memory": "residual", "optimizer": "adam"},
    {"comm_type": "Allgather", "code": "sgd", "fragments": 2, "overlap": "1", "mix": "0.5"},
    {"comm_type": "ParameterServer", "n": 5, "code": "topk(ratio=0.1)", "down": "weights"},
    {"comm_type": "ParameterServer", "n": 5, "code": "topk(ratio=0.1)", "down": "updates"},
]


MOMENTS = long_but([(2, 9)], [(2, 9), (5, 14), (11, 3), (17, 6)])


@pytest.mark.slow
@pytest.mark.parametrize("messages", MOMENTS, ids=str)
@pytest.mark.parametrize("case", ROUNDS, ids=str)
def test_a_death_at_any_moment_of_a_round_costs_the_samples_of_the_dead_alone(
    case, messages, tmp_path, monkeypatch
):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)  # which fails where hashes differ
    breaths = dict(zip((1, 3), messages, strict=True))
    options = {"local_steps": "4", "max_steps": 24, "min_workers": 1, "outer": "sgd(lr=0.9)"}
    events = trained(tmp_path, breaths, **(options | case))
    assert isinstance(events[-1], Ended)
    assert (events[-1].step, events[-1].reason) == (24, "done")
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    rounds = [line for line in lines if line["round"]]
    period = 4 // case.get("fragments", 1)
    assert [line["round"] for line in rounds] == [*range(1, 1 + 24 // period)]
    for line in rounds:
        assert line["images_asked"] == line["images_used"] + line["images_lost"] == 32 * period
    assert sum(line["lost"] for line in rounds) <= 2
    assert {line["workers"] for line in rounds} <= {2, 3, 4}
    assert len(load(tmp_path, 24).workers) == 2


@pytest.mark.long
@pytest.mark.parametrize("messages", [(2, 9), (5, 14), (11, 3)], ids=str)
@pytest.mark.parametrize("code", ["sgd", "topk(ratio=0.1)"])
def test_a_death_one_round_late_costs_the_rounds_that_no_mean_has(
    code, messages, tmp_path, monkeypatch
):
    """The dead rank's round in flight, and the round that it was taking."""
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)
    options = {"comm_type": "Allgather", "local_steps": "4", "overlap": "round", "max_steps": 24}
    breaths = dict(zip((1, 3), messages, strict=True))
    events = trained(tmp_path, breaths, **options, code=code, min_workers=1, outer="sgd(lr=0.9)")
    assert events[-1] == Ended(24, "done")
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    rounds = [line for line in lines if line["round"]]
    assert [(line["step"], line["round"]) for line in rounds] == [
        (8, 1), (12, 2), (16, 3), (20, 4), (24, 6),
    ]  # fmt: skip
    for line in rounds:
        assert line["images_asked"] == line["images_used"] + line["images_lost"]
        assert line["images_asked"] == 32 * line["round_steps"]
    assert 2 <= sum(line["lost"] for line in rounds) <= 4
    assert len(load(tmp_path, 24).workers) == 2


@pytest.mark.slow
def test_a_spare_joins_one_round_late_at_the_anchor(tmp_path, monkeypatch):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)
    options = {"local_steps": "3", "overlap": "round", "max_steps": 24, "n": 3, "spares": 1}
    events = trained(tmp_path, {}, {2: 5}, comm_type="Allgather", code="topk(ratio=0.1)", **options)
    assert events[-1] == Ended(24, "done")
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert any("rank 3, a spare, takes part from round" in note for note in notes), notes
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    assert [line["workers"] for line in lines if line["round"]][-1] == 3
    assert len(load(tmp_path, 24).workers) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("breaths", "spares"), [({1: 2, 3: 9}, 0), ({1: 11}, 1)], ids=str)
def test_a_death_in_a_round_of_a_given_time_costs_the_samples_of_the_dead_alone(
    breaths, spares, tmp_path, monkeypatch
):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)
    step_s = 0.125, 0.25, 0.125, 0.375, 0.125  # by rank
    ticks = {rank: itertools.count(0.0, each) for rank, each in enumerate(step_s)}
    monkeypatch.setattr(paced_rounds, "clock_of", lambda rank: lambda: next(ticks[rank]))
    common = {"comm_type": "Allgather", "code": "topk(ratio=0.1)", "outer": "sgd(lr=0.9)"}
    options = {"local_steps": "4", "local_seconds": 0.75, "max_steps": 24, "min_workers": 1}
    events = trained(tmp_path, breaths, **common, **options, spares=spares)
    assert events[-1] == Ended(24, "done")
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    rounds = [line for line in lines if line["round"]]
    assert sum(line["round_steps"] for line in rounds) == 24
    for line in rounds:
        due = 32 * line["round_steps"]
        assert line["images_asked"] == line["images_used"] + line["images_lost"] == due
    assert sum(line["lost"] for line in rounds) <= len(breaths)
    assert len(load(tmp_path, 24).workers) == 4 - len(breaths) + spares


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_spare_joins_at_the_anchor_before_a_round(optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)
    common = {"comm_type": "Allgather", "code": "topk(ratio=0.1)", "optimizer": optimizer}
    options = {"local_steps": "3", "max_steps": 18, "n": 3, "spares": 1}
    events = trained(tmp_path, {}, {2: 5}, **common, **options)
    assert events[-1] == Ended(18, "done")
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert "rank 3, a spare, takes part from round 3 on" in notes
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    rounds = [line for line in lines if line["round"]]
    assert [(line["workers"], line["images_lost"]) for line in rounds][:2] == [(3, 0), (2, 24)]
    assert [line["workers"] for line in rounds][-1] == 3
    assert len(load(tmp_path, 18).workers) == 3


@pytest.mark.slow
def test_too_few_are_an_end_with_a_checkpoint_of_all_that_was_taken(tmp_path):
    dead = r"rank \[1, 2\] of 4 died, which leaves 2; --min-workers is 3; the checkpoint of step"
    with pytest.raises(TooFewWorkers, match=dead):
        trained(tmp_path, {1: 20, 2: 20}, comm_type="Allgather", code="dgc", min_workers=3)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert steps(tmp_path)[-1] == len(lines) < STEPS
    assert len(load(tmp_path, len(lines)).workers) == 2
    trained(tmp_path, {}, comm_type="Allgather", code="dgc", min_workers=3)
    assert steps(tmp_path)[-1] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(SPARED[:1], SPARED), ids=str)
def test_a_spare_goes_on_with_what_all_have(case, tmp_path, monkeypatch):
    monkeypatch.setattr(replicated, "COMPARE_EVERY", 2)  # which fails where hashes differ
    events = trained(tmp_path, {}, {2: 2, 1: 4}, n=3, spares=3, max_steps=6, **case)
    assert events[-1] == Ended(6, "done")
    assert [event.spares for event in events if isinstance(event, Started)] == [3]
    notes = [event.text for event in events if isinstance(event, Caution)]
    assert [note for note in notes if "takes part" in note] == [
        "rank 3, a spare, takes part from step 3 on",
        "rank 4, a spare, takes part from step 5 on",
    ]
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    assert [(line["asked"], line["workers"], line["lost"]) for line in lines] == [
        (3, 3 - lost, lost) for lost in (0, 1, 0, 1, 0, 0)
    ]
    for line in lines:
        assert line["images_asked"] == line["images_used"] + line["images_lost"] == 3 * 8
    assert len(load(tmp_path, 6).workers) == 3


@pytest.mark.slow
def test_too_few_in_the_step_in_which_a_spare_joins_are_an_end_as_any_other(tmp_path):
    dead = (
        r"rank \[1, 2, 3\] of 6 died, which leaves 3; --min-workers is 4; the checkpoint of step 2"
    )
    options = {"spares": 2, "min_workers": 4, "eval_freq": 1}
    with pytest.raises(TooFewWorkers, match=dead):
        trained(tmp_path, {}, {2: 2, 3: 2, 1: 3}, comm_type="Allgather", code="dgc", **options)
    # Step 2 was saved once by the two who took it, and again with those who joined.
    assert len(load(tmp_path, 2).workers) == 3


@pytest.mark.slow
def test_spares_of_a_run_in_which_nobody_dies_are_sent_home(tmp_path):
    case = {"comm_type": "Allreduce", "code": "sgd", "n": 2, "spares": 2, "max_steps": 2}
    assert trained(tmp_path, {}, **case)[-1] == Ended(2, "done")


def test_a_run_that_nobody_outlives_says_so_where_fewer_should_go_on(tmp_path):
    options = {"n": 4, "network": SMALL, "comm_type": "Allgather", "min_workers": 3}
    for changes, cautioned in (
        ({}, True),
        ({"min_workers": 0}, False),
        ({"min_workers": 4}, False),
    ):
        job = make_job(settings(tmp_path, **(options | changes)), 4)
        assert make_elastic_group(job, network(4)[1]) is not None
        cautions = cautions_of(job, None)
        assert (
            any("the death of any process ends this run" in caution for caution in cautions)
            == cautioned
        )
    wire = network(5)[1]
    wire.fault_tolerant = False
    job = make_job(settings(tmp_path, **(options | {"spares": 1})), 5)
    assert cautions_of(job, make_elastic_group(job, wire))[0].startswith(
        "--spares 1: the death of any"
    )
