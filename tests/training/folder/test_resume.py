"""A run that stopped and went on equals a run that never stopped, bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from support.harness import run_threads, settings
from support.networks import SMALL
from support.selection import slow_but

from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import Snapshot, load, steps
from atomo.training.checkpoints.resume import find_snapshot, spread
from atomo.training.evaluation.evaluator import EvaluatorSettings, evaluate
from atomo.training.job.events import Caution, Event, Started, StepDone


def same(first: Snapshot, second: Snapshot) -> bool:
    """True if weights, optimizer and the workers' states are equal in every bit."""
    pairs = [(first.model, second.model), (first.optimizer, second.optimizer)]
    pairs += zip(first.workers, second.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a) for a, b in pairs)


CASES = [
    {"n": 2, "code": "svd", "batch_size": 8},
    {"n": 3, "code": "svd(selection=top)", "network": "ResNet20", "batch_size": 4},
    {"n": 3, "code": "fp16", "optimizer": "adam", "lr": 0.001},
    {"n": 4, "code": "bf16", "network": SMALL, "lr_shrinkage": 0.9, "lr_shrink_freq": 3,
     "memory": "residual(units=update)"},
]  # fmt: skip


@pytest.mark.long(cases=("{'n': 3, 'code': 'svd",))
@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES), ids=str)
def test_a_resumed_run_equals_an_uninterrupted_one(case, tmp_path):
    common = {"max_steps": 8, "eval_freq": 4, "fusion_mb": 0.2} | case
    whole = settings(tmp_path / "whole", **common)
    run_threads(whole)
    events: list[Event] = []
    stopped = settings(tmp_path / "parts", **common)
    run_threads(stopped, events.append, lambda: len(events) > 4)
    assert steps(tmp_path / "parts")[-1] < 8
    earlier = load(tmp_path / "parts", steps(tmp_path / "parts")[-1])
    assert earlier.config["comm_type"] == "Bcast"  # as earlier versions wrote it
    run_threads(stopped)
    assert same(load(tmp_path / "whole", 8), load(tmp_path / "parts", 8))
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))


def started(chosen: Settings) -> Started:
    events: list[Event] = []
    run_threads(chosen, events.append)
    return next(event for event in events if isinstance(event, Started))


TABLED = """
import torch

class Tabled(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = torch.nn.Linear(1024, num_classes)
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("table", torch.ones(1024), persistent=False)

    def forward(self, images):
        return self.head(images.flatten(1) * self.table)
"""


@pytest.mark.slow
def test_buffers_that_a_network_does_not_keep_are_in_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tabled.py").write_text(TABLED)
    common = {"n": 2, "network": "tabled:Tabled", "code": "sgd", "batch_size": 8}
    run_threads(settings(tmp_path / "run", max_steps=1, **common))
    events = started(settings(tmp_path / "run", max_steps=2, **common))
    assert events.first_step == 2
    snapshot = load(tmp_path / "run", 2)
    assert sorted(snapshot.model) == ["head.bias", "head.weight", "kept"]
    assert [name for name in snapshot.workers[0] if name.startswith("buffer/")] == ["buffer/kept"]
    assert (
        evaluate(EvaluatorSettings(tmp_path / "run", "tabled:Tabled", None, tmp_path), print) == 2
    )


def damage(folder: Path, step: int) -> None:
    path = folder / f"step-{step:08}.model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_damaged_checkpoints_are_left_out_with_a_warning_that_names_them(tmp_path):
    common = {"n": 2, "network": SMALL, "code": "sgd", "batch_size": 8, "eval_freq": 1}
    run_threads(settings(tmp_path / "whole", max_steps=4, **common))
    folder = tmp_path / "run"
    run_threads(settings(folder, max_steps=3, **common))
    damage(folder, 2)
    path = folder / "step-00000003.optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    events: list[Event] = []
    run_threads(settings(folder, max_steps=4, **common), events.append)
    cautions = [event.text for event in events if isinstance(event, Caution)]
    assert [text.split(": ")[0] for text in cautions] == [
        f"the checkpoint of step {step} is left out" for step in (3, 2)
    ]
    assert "step-00000003.optimizer.safetensors has 50 bytes; its manifest says" in cautions[0]
    assert "step-00000002.model.safetensors is damaged: its hash" in cautions[1]
    assert [event.step for event in events if isinstance(event, StepDone)] == [2, 3, 4]
    for step in (1, 2, 3, 4):  # what was damaged has been written anew
        assert same(load(folder, step), load(tmp_path / "whole", step))


def test_where_no_checkpoint_is_whole_it_says_so(tmp_path):
    common = {"n": 2, "network": SMALL, "code": "sgd", "batch_size": 8}
    run_threads(settings(tmp_path, max_steps=1, **common))
    damage(tmp_path, 1)
    with pytest.raises(
        CheckpointError, match="all earlier checkpoints are damaged, too; --resume never starts"
    ):
        find_snapshot(settings(tmp_path, **common))


@pytest.mark.slow
def test_more_workers_take_over_what_fewer_kept(tmp_path):
    before = settings(tmp_path, n=2, code="fp16", max_steps=3, network=SMALL)
    run_threads(before)
    after = settings(tmp_path, n=4, code="fp16", max_steps=5, network=SMALL)
    assert started(after).first_step == 4
    assert len(load(tmp_path, 5).workers) == 3


def test_the_mean_of_the_memories_is_kept_when_the_number_of_workers_changes():
    states = [{"memory/w": torch.tensor([1.0, 5.0])}, {"memory/w": torch.tensor([3.0, 5.0])}]
    assert [s["memory/w"].tolist() for s in spread(states, range(3), range(2))] == [[2.0, 5.0]] * 3
    assert spread(states, range(2), range(2))[1]["memory/w"].tolist() == [3.0, 5.0]
    silent = [{"memory/w": torch.tensor([4.0])}, {}]  # a worker that has kept nothing yet
    assert spread(silent, range(1), range(2))[0]["memory/w"].tolist() == [2.0]


def test_a_host_is_one_worker_to_what_was_kept():
    hosts = [0, 0, 0, 3]  # three ranks and one
    states = [{"memory/v": torch.tensor([2.0]), "buffer/b": torch.tensor([1.0])},
              {"memory/w": torch.tensor([6.0]), "buffer/b": torch.tensor([2.0])},
              {"buffer/b": torch.tensor([3.0])},
              {"memory/v": torch.tensor([4.0]), "buffer/b": torch.tensor([6.0])}]  # fmt: skip
    alike = spread(states, hosts, hosts)
    assert [state["buffer/b"].item() for state in alike] == [1, 2, 3, 6]
    assert [state["memory/v"].item() for state in alike] == [2, 2, 2, 4]
    assert [state["memory/w"].item() for state in alike[:3]] == [6, 6, 6]
    for other_hosts in (range(4), [0, 0, 2, 2], range(2)):
        for state in spread(states, other_hosts, hosts):
            assert {n: t.item() for n, t in state.items()} == {
                "memory/v": 3, "memory/w": 3, "buffer/b": 3
            }  # fmt: skip


@pytest.mark.slow
def test_another_run_can_be_continued_in_a_new_folder(tmp_path):
    run_threads(settings(tmp_path / "whole", max_steps=4, network=SMALL))
    run_threads(settings(tmp_path / "a", max_steps=2, network=SMALL))
    again = settings(tmp_path / "b", max_steps=4, network=SMALL, resume=str(tmp_path / "a"))
    assert started(again).first_step == 3
    assert steps(tmp_path / "b") == [4]
    assert same(load(tmp_path / "whole", 4), load(tmp_path / "b", 4))


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    chosen = settings(tmp_path, max_steps=2, network=SMALL)
    run_threads(chosen)
    events: list[Event] = []
    run_threads(chosen, events.append)
    assert not any(isinstance(event, StepDone) for event in events)
    assert steps(tmp_path) == [2]


@pytest.mark.slow
def test_what_was_under_way_at_a_checkpoint_is_accounted_for_after_it(tmp_path):
    """Gradients arrived too late while states were gathered, after the last line of metrics."""
    common = {"n": 4, "code": "sgd", "batch_size": 8, "num_aggregate": 1, "memory": "residual"}
    for steps_ in (3, 6):
        run_threads(settings(tmp_path / "run", max_steps=steps_, **common))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    before = {"": 0, "images_": 0}
    for line in map(json.loads, lines):
        for kind, used in (("", "workers"), ("images_", "images_used")):
            came_to = [kind + what for what in ("late", "refused", "lost", "under_way")]
            assert before[kind] + line[kind + "asked"] == sum(line[k] for k in (used, *came_to))
            before[kind] = line[kind + "under_way"]
    assert len(lines) == 6


def test_contradicting_settings_are_named(tmp_path):
    run_threads(settings(tmp_path, max_steps=1, network=SMALL))
    with pytest.raises(ConfigError, match=r"--seed 9 \(before: 1\); .*--resume anyway"):
        run_threads(settings(tmp_path, max_steps=2, network=SMALL, seed=9))


OTHER = [
    ({"code": "qsgd(bits=4)"}, "--code qsgd", ""),
    ({"memory": "residual"}, "--memory residual", ", without the memories of the workers"),
    (
        {"memory": "none", "optimizer": "adam"},
        "--optimizer adam",
        " and the state of the optimizer",
    ),
    ({"batch_size": 16}, "--batch-size 16", ""),
]


@pytest.mark.slow(
    cases=(
        "ParameterServer-{'batch",
        "ParameterServer-{'code",
        "ParameterServer-{'memory': 'none'",
    )
)
@pytest.mark.parametrize(("changed", "named", "dropped"), OTHER, ids=lambda value: str(value)[:25])
@pytest.mark.parametrize("comm", slow_but(["ParameterServer"], ["ParameterServer", "Allgather"]))
def test_a_run_continues_with_another_method_only_anyway(changed, named, dropped, comm, tmp_path):
    common = {"network": SMALL, "code": "topk(ratio=0.1)", "memory": "dgc", "batch_size": 8,
              "comm_type": comm}  # fmt: skip
    run_threads(settings(tmp_path, max_steps=2, **common))
    changed = {"max_steps": 4} | common | changed
    with pytest.raises(ConfigError) as caught:
        run_threads(settings(tmp_path, **changed))
    assert named in str(caught.value)
    assert "--resume anyway" in str(caught.value)
    assert steps(tmp_path) == [2]  # a refused run leaves the folder as it was
    events: list[Event] = []
    run_threads(settings(tmp_path, resume="anyway", **changed), events.append)
    assert steps(tmp_path)[-1] == 4
    texts = [event.text for event in events if isinstance(event, Caution)]
    assert any("step 2" in text and named in text and dropped in text for text in texts)


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in that folder"):
        run_threads(settings(tmp_path / "a", resume=str(tmp_path / "b")))
