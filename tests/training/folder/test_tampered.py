"""A checkpoint whose files are whole may still hold anything: it fits this run, or is refused."""

import json
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load, save
from support.harness import run_threads, settings
from support.networks import SMALL
from torch import Size, Tensor, nn

from atomo.codecs import make_codec
from atomo.errors import CheckpointError, ConfigError
from atomo.fusion import flatten, plan
from atomo.memory import kind_of, make_memory
from atomo.options.grouping import ONE
from atomo.training.checkpoints.resume import find_snapshot
from atomo.training.checkpoints.schema import check_worker, load_model
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer

State = dict[str, Tensor]
NAN = float("nan")


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def changed(key: str, value: Tensor | None) -> Callable[[State], State]:
    """Returns a state with another tensor under one name, or none."""

    def change(state: State) -> State:
        remaining = {name: tensor for name, tensor in state.items() if name != key}
        return remaining if value is None else remaining | {key: value}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("0.weight", None), "of another model: .*Missing key.*0.weight"),
        (changed("x", torch.ones(3)), "of another model: .*Unexpected key.*x"),
        (changed("0.bias", torch.ones(1)), r"'0.bias' is torch.float32 \(1,\) in the checkpoint"),
        (changed("0.bias", torch.tensor(1.0)), r"'0.bias' is torch.float32 \(\)"),
        (changed("0.bias", torch.ones(2).int()), "'0.bias' is torch.int32"),
        (changed("0.bias", torch.ones(2) > 0), "'0.bias' is torch.bool"),
        (changed("0.bias", torch.ones(2).double()), "'0.bias' is torch.float64"),
        (changed("1.running_var", torch.ones(2, 1)), "'1.running_var' is"),
        (changed("1.num_batches_tracked", torch.tensor(1.0)), "'1.num_batches_tracked' is"),
        (lambda state: {}, "Missing key"),
    ],
)
def test_a_model_takes_its_own_tensors_and_no_others(change, message):
    whole, target = model().state_dict(), model()
    load_model(target, whole)
    with pytest.raises(CheckpointError, match=message):
        load_model(target, change(whole))
    assert all(tensor.equal(whole[name]) for name, tensor in target.state_dict().items())


@pytest.mark.parametrize(
    ("memory", "change", "message"),
    [
        ("residual", changed("memory/x", torch.ones(3)), "has no 'memory/x'"),
        ("residual", changed("x", torch.ones(3)), "has no 'x'"),
        ("residual", changed("buffer/x", torch.ones(3)), "has no 'buffer/x'"),
        ("residual", changed("buffer/0.weight", torch.ones(2, 3)), "has no 'buffer/0.weight'"),
        ("residual", changed("memory/0.weight", torch.ones(6)), r"float32 \(6,\)"),
        ("residual", changed("memory/0.weight", torch.ones(1)), r"float32 \(1,\)"),
        ("residual", changed("memory/0.weight", torch.ones(2, 3).int()), "torch.int32"),
        ("residual", changed("memory/0.weight", torch.full((2, 3), NAN)), "is not finite"),
        ("residual", changed("buffer/1.running_var", torch.ones(3)), r"float32 \(3,\)"),
        ("residual", changed("buffer/1.running_var", None), "3 buffers; the checkpoint, 2"),
        ("residual", changed("memory//learning-rate", torch.ones(1)), "learning-rate' is"),
        ("dgc", changed("memory//learning-rate", torch.ones(())), "has no 'memory//learning"),
        ("momentum", changed("memory/0.bias/x", torch.ones(2)), "has no 'memory/0.bias/x'"),
    ],
)
def test_a_worker_takes_what_it_would_have_kept_and_nothing_else(memory, change, message):
    own = model()
    whole = {f"buffer/{name}": tensor for name, tensor in own.named_buffers()}
    if memory == "residual":
        whole |= {
            "memory/0.weight": torch.ones(2, 3),
            "memory//learning-rate": torch.ones(()).double(),
        }
    check_worker(whole, own, kind_of(memory))
    check_worker({}, own, kind_of(memory))
    with pytest.raises(CheckpointError, match=message):
        check_worker(change(whole), own, kind_of(memory))


@pytest.mark.parametrize("rate", [-1.0, NAN, float("inf")])
def test_a_residual_is_of_no_rate_that_a_run_can_have(rate):
    with pytest.raises(CheckpointError, match="cannot hold a learning rate of"):
        make_memory("residual").load_state_dict(
            {"/learning-rate": torch.tensor(rate, dtype=torch.float64)}
        )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sgd", changed("momentum_buffer/0.bias", None), "no momentum_buffer for parameter 0.bias"),
        ("sgd", changed("momentum_buffer/0.bias", torch.ones(1)), r"float32 \(1,\)"),
        ("sgd", changed("momentum_buffer/0.bias", torch.ones(2).int()), "torch.int32"),
        ("sgd", changed("strange", torch.ones(())), "sgd has momentum_buffer"),
        ("sgd", changed("strange/0.bias", torch.ones(2)), "sgd has momentum_buffer"),
        ("sgd", lambda state: {"momentum_buffer": torch.ones(())}, "no momentum_buffer for"),
        ("adam", changed("step", None), "adam has exp_avg, exp_avg_sq, step"),
        ("adam", changed("step", torch.ones(3)), r"'step' is torch.float32 \(3,\)"),
        ("adam", changed("step", torch.tensor(3)), "'step' is torch.int64"),
        ("adam", changed("exp_avg/0.bias", None), "no exp_avg for parameter 0.bias"),
        ("adam", lambda state: {"step": torch.ones(())}, "the checkpoint has step of the"),
    ],
)
def test_an_optimizer_takes_its_own_state_and_no_other(tmp_path, name, change, message):
    def fresh() -> FlatOptimizer:
        own = nn.Linear(3, 2)
        named = [(f"0.{key}", Size(part.shape)) for key, part in own.named_parameters()]
        buckets = plan(named, make_codec("sgd"), ONE)
        weights = flatten(nn.Sequential(own), buckets)
        chosen = settings(tmp_path, optimizer=name)
        return FlatOptimizer(weights, buckets, chosen, LearningRate(chosen))

    optimizer = fresh()
    optimizer.step(1)
    whole = optimizer.state_dict()
    fresh().load_state_dict(whole)
    with pytest.raises(CheckpointError, match=message):
        fresh().load_state_dict(change(whole))


def forge(folder: Path, number: int, change: Callable[[State], State]) -> None:
    """Changes one file of the only checkpoint, and has its manifest vouch for it."""
    [path] = folder.glob("step-*.json")
    manifest = json.loads(path.read_text())
    entry = manifest["files"][number]
    data = save(change(load((folder / entry["name"]).read_bytes())))
    (folder / entry["name"]).write_bytes(data)
    entry |= {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    path.write_text(json.dumps(manifest))


def reconfigure(folder: Path, key: str, value: object) -> None:
    """Changes one setting in the only manifest."""
    [path] = folder.glob("step-*.json")
    manifest = json.loads(path.read_text())
    manifest["config"][key] = value
    path.write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns the folder of a run of one step."""
    folder = tmp_path_factory.mktemp("run")
    run_threads(settings(folder, max_steps=1, network=SMALL, code="topk(ratio=0.1)", n=3))
    (folder / "finished.json").unlink()
    return folder


ANY = torch.ones(3)
STRANGE = ["", "x" * 10**6, "ﬁ\0", 0, -1, 10**300, 1e300, NAN, True]


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_run_refuses_what_does_not_belong_to_it(run, tmp_path, number):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    forge(folder, number, changed("x", ANY))
    with pytest.raises(CheckpointError):
        run_threads(settings(folder, max_steps=1, network=SMALL, code="topk(ratio=0.1)", n=3))


@pytest.mark.slow
def test_any_setting_in_a_manifest_is_taken_or_refused(run, tmp_path):
    keys = json.loads(next(run.glob("step-*.json")).read_text())["config"]
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    [manifest] = folder.glob("step-*.json")
    text = manifest.read_text()
    for key, value in zip(keys, cycle(STRANGE), strict=False):
        manifest.write_text(text)
        reconfigure(folder, key, value)
        identity_or_nothing(folder)


def identity_or_nothing(folder: Path) -> None:
    """Compares a resumed run with its own settings, without running it."""
    try:
        snapshot = find_snapshot(settings(folder, network=SMALL, code="topk(ratio=0.1)", n=3))
    except (CheckpointError, ConfigError) as refused:
        snapshot = None if len(str(refused)) < 10_000 else "a message without end"
    assert snapshot != "a message without end"
