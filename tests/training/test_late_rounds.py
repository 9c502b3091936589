"""Means applied one round late: the bits of other loops, and the ends of phases and runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import PATIENCE_S, run_threads, settings, together
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but
from torch import nn
from torch.nn.functional import cross_entropy

import atomo
from atomo.config.settings import Settings
from atomo.exchange.collectives.direct import Direct
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.job.job import make_job
from atomo.transports import network

MEAN = "sgd(lr=1)"


def late(train_dir: Path, **changes: object) -> Settings:
    """Returns a short run of two ranks whose means are applied one round late."""
    short = {"n": 2, "comm_type": "Allgather", "code": "tiletopk(ratio=0.1)", "network": SMALL}
    rounds = {"local_steps": "3", "overlap": "round", "max_steps": 8, "fusion_mb": SMALL_MB}
    return settings(train_dir, **(short | rounds | changes))


def ended(chosen: Settings) -> Snapshot:
    """Returns the last checkpoint of a run."""
    run_threads(chosen)
    return load(Path(chosen.train_dir), chosen.max_steps)


def in_loops(chosen: Settings, steps: int) -> dict[int, dict[str, Any]]:
    """Trains each worker in a loop of its own; returns its anchor and its weights."""
    transports, replicas = network(chosen.workers), dict[int, dict[str, Any]]()
    jobs = [make_job(chosen, chosen.workers) for _ in transports]

    def train(rank: int) -> None:
        job, shard = jobs[rank], jobs[rank].shard(rank + 1)
        inner = torch.optim.SGD(job.model.parameters(), chosen.lr or 0.02, momentum=0.9)
        local: Any = atomo.local_steps(
            job.model, inner, chosen.code, every=3, overlap="round", outer=chosen.outer,
            memory=chosen.memory, collective=Direct(transports[rank], PATIENCE_S), dense_below=0,
        )  # fmt: skip
        for step in range(1, steps + 1):
            batch = job.workload.train.batch(shard.indices(step))
            local.zero_grad()
            cross_entropy(job.model(*batch.inputs), batch.targets).backward()
            local.step()
        replicas[rank] = {"own": weights(job.model)}
        with local.anchor():
            replicas[rank]["anchor"] = weights(job.model)

    together([lambda rank=rank: train(rank) for rank in range(chosen.workers)])
    return replicas


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("outer", [MEAN, "sgd(lr=0.7, momentum=0.9, nesterov=yes)"])
def test_a_run_has_the_bits_of_a_loop_with_local_steps(outer, tmp_path):
    chosen = late(tmp_path, outer=outer, max_steps=12, eval_freq=1, dense_below=0)
    run_threads(chosen)
    for step in (6, 8):
        saved, replicas = load(tmp_path, step), in_loops(chosen, step)
        for rank, replica in replicas.items():
            for name, own in replica["own"].items():
                assert saved.workers[rank]["local/" + name].equal(own), (step, rank, name)
                assert saved.model[name].equal(replica["anchor"][name]), (step, rank, name)


@pytest.mark.slow(cases=("adam-",))
@pytest.mark.parametrize("overlap", slow_but(["round"], ["round", "3"]))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_process_trains_as_without_local_steps(optimizer, overlap, tmp_path):
    common = {"n": 1, "code": "sgd", "optimizer": optimizer, "weight_decay": 0.01}
    plain = ended(late(tmp_path / "plain", **common, local_steps="1", overlap="0"))
    rounds = ended(late(tmp_path / "rounds", **common, outer=MEAN, overlap=overlap))
    assert all(plain.model[name].equal(rounds.model[name]) for name in plain.model)


@pytest.mark.slow
def test_the_first_round_moves_the_anchor_after_the_second(tmp_path):
    run_threads(late(tmp_path, outer=MEAN, eval_freq=1))
    start, first, second = (load(tmp_path, step) for step in (1, 5, 6))
    assert all(start.model[name].equal(first.model[name]) for name in first.model)
    assert not all(first.model[name].equal(second.model[name]) for name in first.model)


@pytest.mark.slow
def test_the_last_line_has_the_last_two_rounds(tmp_path):
    run_threads(late(tmp_path, outer=MEAN, min_workers=2))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["round"] for line in lines] == [0, 0, 0, 0, 0, 1, 0, 3]
    assert [line["round_steps"] for line in lines] == [0, 0, 0, 0, 0, 3, 0, 5]
    assert [line["images_used"] // 32 for line in lines] == [0, 0, 0, 0, 0, 6, 0, 10]
    assert all(0 <= line["accuracy"] <= 1 for line in lines)


@pytest.mark.slow
def test_metrics_after_a_resume_are_those_of_an_uninterrupted_run(tmp_path):
    """Reports of an exchange in flight are part of a checkpoint."""
    whole = late(tmp_path / "whole", outer=MEAN)
    run_threads(whole)
    parts = late(tmp_path / "parts", outer=MEAN)
    run_threads(parts, interrupted=lambda: (tmp_path / "parts" / "metrics.jsonl").exists())
    run_threads(parts)
    ends = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        for name in ("whole", "parts")
    ]
    assert ends[0]["loss"] == ends[1]["loss"]
    assert ends[0]["images_used"] == ends[1]["images_used"]
