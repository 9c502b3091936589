"""Local steps with a master: the same bits as without one, and checkpoints between rounds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import largest_difference, run_threads, settings
from support.networks import SMALL, SMALL_MB
from support.selection import slow_but
from training.test_local_replicas import cut

from atomo.config.settings import Settings
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.job.events import Event, RankTimes

OUTER = "sgd(lr=0.7, momentum=0.9, nesterov=yes)"


def ended(chosen: Settings) -> Snapshot:
    """Returns the last checkpoint of a run."""
    run_threads(chosen)
    return load(Path(chosen.train_dir), chosen.max_steps)


def local(train_dir: Path, **changes: object) -> Settings:
    """Returns a short run of two workers on a small network."""
    short = {"n": 3, "code": "topk(ratio=0.1)", "network": SMALL, "local_steps": "3"}
    return settings(train_dir, **(short | {"max_steps": 8, "fusion_mb": SMALL_MB} | changes))


def same(first: Snapshot, second: Snapshot) -> bool:
    """True if weights, optimizer and the workers' states are equal in every bit."""
    pairs = [(first.model, second.model), (first.optimizer, second.optimizer)]
    pairs += zip(first.workers, second.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the log of steps."""
    return [*map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("down", slow_but(["updates"], ["weights", "updates", "auto"]))
def test_a_master_has_the_bits_of_replicas(down, tmp_path):
    common = {"outer": OUTER, "optimizer": "adam", "lr_shrinkage": 0.9, "lr_shrink_freq": 2}
    common["ema_decay"] = 0.9
    served = ended(local(tmp_path / "served", down=down, **common))
    replicas = ended(local(tmp_path / "replicas", n=2, comm_type="Allgather", **common))
    assert same(served, replicas)


STREAMS = [
    {"fragments": 2, "overlap": "1", "mix": "0.5", "local_steps": "4"},
    {"mix": "0.25"},
    {"overlap": "1"},
    {"fragments": 2, "local_steps": "4", "outer": OUTER, "down": "updates"},
    {"transform": "dct", "code": "tiletopk", "memory": "residual(decay=0.95)"},
]


@pytest.mark.slow
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_fragments_overlap_mix_and_transform_have_the_bits_of_replicas(case, tmp_path):
    common = {"optimizer": "adam", "max_steps": 10, "eval_freq": 100} | case
    served = ended(local(tmp_path / "served", **common))
    without = {name: value for name, value in common.items() if name != "down"}
    replicas = ended(local(tmp_path / "replicas", n=2, comm_type="Allgather", **without))
    assert served.model.keys() == replicas.model.keys()
    assert all(served.model[name].equal(replicas.model[name]) for name in served.model)
    assert same(served, replicas)


@pytest.mark.slow
@pytest.mark.parametrize("case", STREAMS, ids=str)
def test_a_run_resumed_between_two_fragments_equals_an_uninterrupted_one(case, tmp_path):
    every = 2 if "fragments" in case else 3
    common = {"optimizer": "adam", "max_steps": 10, "eval_freq": every} | case
    whole = ended(local(tmp_path / "whole", **common))
    cut(tmp_path / "whole", tmp_path / "parts", 6)
    assert same(whole, ended(local(tmp_path / "parts", **common)))


@pytest.mark.slow
@pytest.mark.parametrize("down", ["updates", "weights", "delta(bf16)"])
def test_batch_norm_statistics_are_averaged_at_each_exchange(down, tmp_path):
    common = {"network": "networks:normed", "code": "sgd", "outer": "sgd(lr=1)", "eval_freq": 100}
    served = ended(local(tmp_path / "served", down=down, **common))
    replicas = ended(local(tmp_path / "replicas", n=2, comm_type="Allgather", **common))
    assert any("running_var" in name for name in served.model)
    near = 1e-6 if down != "delta(bf16)" else 0.02
    assert largest_difference(served.model, replicas.model) < near
    first, second = served.workers
    names = [name for name in first if "running" in name]
    assert names
    assert all(not first[name].equal(second[name]) for name in names)  # of their last round


@pytest.mark.slow
def test_one_worker_trains_as_without_local_steps(tmp_path):
    common = {"n": 2, "code": "sgd"}
    plain = ended(local(tmp_path / "plain", **(common | {"local_steps": "1"})))
    rounds = ended(local(tmp_path / "rounds", **common, outer="sgd(lr=1)"))
    # A difference in float32 does not always lead back to the weights.
    assert largest_difference(plain.model, rounds.model) < 1e-6


CASES = [
    {"outer": OUTER, "optimizer": "adam"},
    {"down": "weights", "code": "terngrad(scale=shared)", "local_steps": "0: 1; 0.1: 3"},
    {"down": "delta(topk)", "network": "networks:normed", "outer": OUTER},
    {"down": "updates", "num_aggregate": 2, "outer": OUTER},
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_resumed_run_equals_an_uninterrupted_one(case, tmp_path):
    common = {"eval_freq": 1} | case
    whole = ended(local(tmp_path / "whole", **common))
    events: list[Event] = []
    stopped = local(tmp_path / "parts", **common)
    run_threads(stopped, events.append, lambda: len(events) > 2)
    assert same(whole, ended(stopped))
    steps = [line["step"] for line in metrics(tmp_path / "parts")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 8


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_resumed_in_the_middle_of_a_round_equals_an_uninterrupted_one(case, tmp_path):
    common = {"eval_freq": 2} | case
    whole = ended(local(tmp_path / "whole", **common))
    cut(tmp_path / "whole", tmp_path / "parts", 4)
    assert same(whole, ended(local(tmp_path / "parts", **common)))
    lines = metrics(tmp_path / "parts")
    same_images = [line["images_asked"] for line in metrics(tmp_path / "whole")]
    assert [line["images_asked"] for line in lines] == same_images


@pytest.mark.slow
def test_checkpoints_in_the_middle_of_a_round_have_the_bits_of_replicas(tmp_path):
    common = {"outer": OUTER, "optimizer": "adam", "eval_freq": 2, "max_steps": 5}
    run_threads(local(tmp_path / "served", **common))
    run_threads(local(tmp_path / "replicas", n=2, comm_type="Allgather", **common))
    assert same(load(tmp_path / "served", 4), load(tmp_path / "replicas", 4))
    assert any(name.startswith("local/") for name in load(tmp_path / "served", 4).workers[0])


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps"), [(2, [1, 2, 3, 4, 6, 8]), (3, [1, 2, 3, 6, 8])])
def test_a_master_continues_a_round_that_as_many_replicas_left(workers, steps, tmp_path):
    run_threads(local(tmp_path, n=2, comm_type="Allgather", max_steps=5, eval_freq=4))
    (tmp_path / "step-00000005.json").unlink()
    after = local(tmp_path, n=1 + workers, max_steps=8)
    run_threads(after)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == steps  # others begin the round anew
    assert [line["round"] for line in lines][-2:] == [2, 3]
    assert lines[-2]["images_used"] == workers * 3 * 32


@pytest.mark.slow
def test_lines_are_rounds_with_all_their_images(tmp_path):
    events: list[Event] = []
    run_threads(local(tmp_path, outer=OUTER), events.append)
    lines = metrics(tmp_path)
    assert [(line["step"], line["round"], line["round_steps"]) for line in lines] == [
        (3, 1, 3), (6, 2, 3), (8, 3, 2),
    ]  # fmt: skip
    assert [line["images_used"] // 32 for line in lines] == [6, 6, 4]
    assert all(line["images_asked"] == line["images_used"] for line in lines)
    assert lines[0]["correlation"] is None
    assert all(-1 <= line["correlation"] <= 1 for line in lines[1:])
    times = [event for event in events if isinstance(event, RankTimes)][-1]
    assert (times.step, times.rank) == (8, [1, 2])
    assert all(seconds > 0 for seconds in times.compute_s)
    layers = json.loads((tmp_path / "layers.json").read_text())["rows"]
    assert sum(layer["entries"] for layer in layers) == lines[0]["dense_bytes"] // (4 * 2 * 3)
    assert any(layer["codec"].startswith("topk(ratio=0.1") for layer in layers)
    assert all(0 < layer["bytes"] <= 4 * layer["entries"] for layer in layers)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "muon"])
def test_workers_continue_the_optimizer_of_the_first_steps_with_an_empty_memory(
    optimizer, tmp_path
):
    common = {"local_steps": "0: 1; 0.1: 3", "memory": "residual", "optimizer": optimizer}
    served = ended(local(tmp_path / "served", **common))
    replicas = ended(local(tmp_path / "replicas", n=2, comm_type="Allgather", **common))
    assert same(served, replicas)
    assert all(torch.isfinite(tensor).all() for tensor in served.model.values())
