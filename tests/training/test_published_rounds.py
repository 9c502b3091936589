"""DeMo and SPARTA in runs, as published: by the parts that other loops have."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import PATIENCE_S, run_threads, settings, together
from support.networks import SMALL, SMALL_MB
from torch.nn.functional import cross_entropy

import atomo
from atomo.config.settings import Settings
from atomo.exchange.collectives.direct import Direct
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.job.job import make_job
from atomo.transports import network

SHORT = {"n": 2, "network": SMALL, "fusion_mb": SMALL_MB, "max_steps": 6, "eval_freq": 1}
RATE = 0.01


def of_recipe(train_dir: Path, recipe: str, **changes: object) -> Settings:
    """Returns a short run of two ranks with a recipe."""
    given = {"train_dir": str(train_dir), "timeout": PATIENCE_S, "evaluator": "none"}
    return Settings.from_recipe(recipe, **(given | SHORT | changes)).resolved()


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["0", "round"])
def test_demo_has_the_bits_of_a_loop_with_local_steps(overlap, tmp_path):
    chosen = of_recipe(
        tmp_path, "demo", lr=RATE, lr_shrinkage=0.5, lr_shrink_freq=2, clip_grad=0.0,
        overlap=overlap, code="tiletopk(ratio=0.1)", memory="residual(decay=0.9)",
    )  # fmt: skip
    run_threads(chosen)
    anchors: dict[int, dict[str, torch.Tensor]] = {}
    transports = network(2)
    jobs = [make_job(chosen, 2) for _ in transports]

    def train(rank: int) -> None:
        job, shard = jobs[rank], jobs[rank].shard(rank + 1)
        inner = torch.optim.SGD(job.model.parameters(), RATE)
        local: Any = atomo.local_steps(
            job.model, inner, chosen.code, recipe="demo", memory=chosen.memory, dense_below=0,
            overlap=0 if overlap == "0" else overlap, collective=Direct(transports[rank], 600.0),
        )  # fmt: skip
        for step in range(1, 6):
            batch = job.workload.train.batch(shard.indices(step))
            local.zero_grad()
            cross_entropy(job.model(*batch.inputs), batch.targets).backward()
            inner.param_groups[0]["lr"] = job.rate.at(step)
            local.step()
        with local.anchor():
            anchors[rank] = {n: p.detach().clone() for n, p in job.model.named_parameters()}

    together([lambda rank=rank: train(rank) for rank in range(2)])
    saved = load(tmp_path, 5).model
    assert all(saved[name].equal(anchors[rank][name]) for rank in anchors for name in saved)


@pytest.mark.slow
def test_signs_with_a_master_are_those_without(tmp_path):
    common = {"local_steps": "2", "outer": "sign(weight_decay=0.1)", "momentum": 0.0}
    coded = {"code": "topk(ratio=0.1)", "memory": "residual(decay=0.9)"}
    short = SHORT | common | coded | {"eval_freq": 1000}
    run_threads(settings(tmp_path / "served", **(short | {"n": 3})))
    run_threads(settings(tmp_path / "replicas", **short, comm_type="Allgather"))
    served, replicas = (load(tmp_path / name, 6).model for name in ("served", "replicas"))
    assert all(served[name].equal(replicas[name]) for name in replicas)


def own_weights(saved: Snapshot) -> list[dict[str, torch.Tensor]]:
    """Returns the weights of each rank, by parameter name."""
    return [
        {n.removeprefix("local/"): t for n, t in worker.items() if n.startswith("local/")}
        for worker in saved.workers
    ]


@pytest.mark.slow
def test_sparta_averages_the_same_few_weights_and_saves_the_mean(tmp_path):
    run_threads(of_recipe(tmp_path, "sparta", code="randk(ratio=0.1, unbiased=False)"))
    before = own_weights(load(tmp_path, 1))
    for step in range(2, 7):
        saved = load(tmp_path, step)
        first, second = own_weights(saved)
        differed = {n: before[0][n].ne(before[1][n]) for n in first}
        shared = torch.cat([first[n].eq(second[n])[differed[n]] for n in first])
        assert 0.05 < shared.float().mean() < 0.15
        for name, mean in saved.model.items():
            assert mean.equal(torch.stack([first[name], second[name]]).mean(0))
            anchor = saved.optimizer["outer/anchor/" + name]
            sent = first[name].eq(second[name]) & differed[name]
            assert anchor[sent].equal(first[name][sent])
        before = [first, second]


@pytest.mark.slow
def test_a_sparta_of_another_number_of_ranks_begins_at_the_mean(tmp_path):
    few = {"code": "randk(ratio=0.1, unbiased=False)", "max_steps": 3}
    run_threads(of_recipe(tmp_path, "sparta", **few))
    mean = load(tmp_path, 3).model
    run_threads(of_recipe(tmp_path, "sparta", **(few | {"n": 3, "max_steps": 4, "lr": 1e-9})))
    after = load(tmp_path, 4)
    assert len(own_weights(after)) == 3
    for name, weights in mean.items():
        for own in own_weights(after):
            moved = own[name].ne(weights).float().mean()
            assert moved < 0.3, name  # what was sent: the anchor had it of earlier rounds
