"""Local steps without a master: laws of rounds, and checkpoints in the middle of a round."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.harness import run_threads, settings
from support.networks import SMALL, SMALL_MB

from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.options.outer import parse_outer
from atomo.training.checkpoints.checkpoint import Snapshot, load, unfinish
from atomo.training.checkpoints.resume import spread
from atomo.training.job.job import make_job

MEAN = "sgd(lr=1)"


def ended(chosen: Settings) -> Snapshot:
    """Returns the last checkpoint of a run."""
    run_threads(chosen)
    return load(Path(chosen.train_dir), chosen.max_steps)


def local(train_dir: Path, **changes: object) -> Settings:
    """Returns a short run of two ranks on a small network."""
    short = {"n": 2, "comm_type": "Allgather", "code": "sgd", "network": SMALL, "local_steps": "3"}
    return settings(train_dir, **(short | {"max_steps": 8, "fusion_mb": SMALL_MB} | changes))


def same(first: Snapshot, second: Snapshot) -> bool:
    """True if weights, optimizer and the workers' states are equal in every bit."""
    pairs = [(first.model, second.model), (first.optimizer, second.optimizer)]
    pairs += zip(first.workers, second.workers, strict=True)
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


@pytest.mark.slow(cases=("adam",))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_replica_trains_as_without_local_steps(optimizer, tmp_path):
    common = {"n": 1, "optimizer": optimizer, "weight_decay": 0.01, "clip_grad": 0.5}
    plain = ended(local(tmp_path / "plain", **(common | {"local_steps": "1"})))
    rounds = ended(local(tmp_path / "rounds", **common, outer=MEAN))
    assert all(plain.model[name].equal(rounds.model[name]) for name in plain.model)


def averaged_by_hand(chosen: Settings) -> dict[str, torch.Tensor]:
    """Trains each worker by PyTorch alone, in float64 between exchanges."""
    replicas, outer = [], parse_outer(chosen.outer)
    for rank in range(chosen.workers):
        torch.manual_seed(0)
        job = make_job(chosen, chosen.workers)
        optimizer = torch.optim.SGD(job.model.parameters(), chosen.lr, momentum=chosen.momentum)
        replicas.append((job, job.shard(rank + 1), optimizer))
    names = [name for name, _ in replicas[0][0].model.named_parameters()]
    anchor = [p.detach().double() for p in replicas[0][0].model.parameters()]
    momentum = [torch.zeros_like(tensor) for tensor in anchor]
    for step in range(1, chosen.max_steps + 1):
        for job, shard, optimizer in replicas:
            batch = job.workload.train.batch(shard.indices(step))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(job.model(*batch.inputs), batch.targets).backward()
            optimizer.step()
        if step % int(chosen.local_steps) and step != chosen.max_steps:
            continue
        models = [[p.double() for p in job.model.parameters()] for job, _, _ in replicas]
        for place, weights in enumerate(anchor):
            mean = sum(weights - own[place].detach() for own in models) / len(models)
            momentum[place].mul_(outer.momentum).add_(mean)
            nesterov = mean + outer.momentum * momentum[place]
            weights -= outer.lr * (nesterov if outer.nesterov else momentum[place])
            for job, _, _ in replicas:
                [*job.model.parameters()][place].data.copy_(weights)
    return dict(zip(names, anchor, strict=True))


@pytest.mark.slow(cases=("sgd(lr=0.7",))
@pytest.mark.parametrize("outer", [MEAN, "sgd(lr=0.7, momentum=0.9, nesterov=yes)"])
def test_rounds_equal_those_computed_by_hand(outer, tmp_path):
    chosen = local(tmp_path, outer=outer, momentum=0.5)
    trained, expected = ended(chosen), averaged_by_hand(chosen)
    for name, tensor in expected.items():
        torch.testing.assert_close(trained.model[name].double(), tensor, rtol=0, atol=2e-6)


CASES = [
    {"code": "topk(ratio=0.1)"},
    {"code": "topk(ratio=0.1)", "optimizer": "adam", "fragments": 2, "overlap": "1", "mix": "0.5",
     "local_steps": "4", "outer": "sgd(lr=0.7, momentum=0.9, nesterov=yes)"},
    {"comm_type": "PowerSGD", "code": "svd(rank=2)"},
    {"comm_type": "PowerSGD", "code": "svd(rank=2)", "overlap": "round", "outer": "sgd(lr=0.5)"},
    {"code": "topk(ratio=0.1)", "overlap": "round", "network": "networks:normed"},
    {"local_steps": "1", "momentum": 0.0, "code": "tiletopk(ratio=0.1)", "outer": "sign",
     "outer_mean": "senders", "transform": "dct", "memory": "residual(decay=0.9)"},
    {"local_steps": "2", "optimizer": "adam", "code": "randk(ratio=0.1, unbiased=False)",
     "mix": "unsent", "outer": "sgd(lr=1)", "memory": "none"},
    {"comm_type": "Chunked", "code": "chunktopk"},
    {"comm_type": "Allreduce", "code": "bf16", "local_steps": "0: 1; 0.1: 3", "ema_decay": 0.8},
    {"comm_type": "ACPSGD", "code": "svd(rank=2)", "network": "ResNet20", "batch_size": 4},
]  # fmt: skip


def cut(whole: Path, folder: Path, step: int) -> None:
    """Copies a run as if it had been killed after the checkpoint of a step."""
    shutil.copytree(whole, folder)
    for path in folder.iterdir():
        number = path.name.partition("-")[2].partition(".")[0].partition("-")[0]
        if path.name.startswith("step-") and int(number) > step:
            path.unlink()
    unfinish(folder)


@pytest.mark.long(cases=("{'comm_type': 'ACPSGD'", "{'comm_type': 'Chunked'"))
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_resumed_in_the_middle_of_a_round_equals_an_uninterrupted_one(case, tmp_path):
    common = {"eval_freq": 1} | case
    whole = ended(local(tmp_path / "whole", **common))
    for step in (4, 7):
        folder = tmp_path / f"after-{step}"
        cut(tmp_path / "whole", folder, step)
        assert same(whole, ended(local(folder, **common))), step


@pytest.mark.slow
def test_a_checkpoint_in_the_middle_of_a_round_has_the_anchor(tmp_path):
    run_threads(local(tmp_path, eval_freq=1, outer=MEAN))
    anchor, later, end = (load(tmp_path, step) for step in (3, 4, 6))
    assert all(anchor.model[name].equal(later.model[name]) for name in anchor.model)
    name = next(iter(anchor.model))
    assert not any(key.startswith("local/") for key in anchor.workers[0])
    own = [worker["local/" + name] for worker in later.workers]
    assert not own[0].equal(own[1])
    assert not own[0].equal(anchor.model[name])
    assert not end.model[name].equal(anchor.model[name])


@pytest.mark.slow
def test_another_number_of_ranks_begins_at_the_anchor(tmp_path):
    common = {"code": "topk(ratio=0.1)", "eval_freq": 1}
    run_threads(local(tmp_path / "whole", **common))
    cut(tmp_path / "whole", tmp_path / "more", 4)
    before = load(tmp_path / "more", 4)
    chosen = local(tmp_path / "more", **common, n=3, max_steps=5)
    after = ended(chosen)
    job = make_job(chosen, 3)
    states = spread(before.workers, range(3), range(2))
    assert not any(name.startswith("local/") for state in states for name in state)
    for name in (name for name in before.workers[0] if name.startswith("memory/")):
        total = sum(state[name] for state in before.workers) / 2
        torch.testing.assert_close(states[0][name], total)
    assert len(after.workers) == 3
    assert job.rounds.at(5).last == 5


@pytest.mark.slow
def test_metrics_have_a_line_for_each_step_and_the_figures_of_rounds(tmp_path):
    run_threads(local(tmp_path, outer="sgd(lr=0.5, momentum=0.5)", min_workers=2))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert [line["round"] for line in lines] == [0, 0, 1, 0, 0, 2, 0, 3]
    assert [line["round_steps"] for line in lines] == [0, 0, 3, 0, 0, 3, 0, 2]
    assert [line["images_used"] // 32 for line in lines] == [0, 0, 6, 0, 0, 6, 0, 4]
    assert [line["up_bytes"] > 0 for line in lines] == [line["round"] > 0 for line in lines]
    rho, rate = lines[5]["correlation"], lines[5]["outer_rate"]
    assert -1 <= rho <= 1
    assert rate == pytest.approx(0.5 * (1 + 0.5 / (1 - 0.5 * rho)))


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["0", "round"])
def test_an_average_of_weights_is_one_of_anchors_at_the_pace_of_steps(overlap, tmp_path):
    common = {"ema_decay": 0.8, "eval_freq": 1, "max_steps": 9, "outer": MEAN, "overlap": overlap}
    run_threads(local(tmp_path, **common))
    saved = {step: load(tmp_path, step) for step in (3, 6, 9)}
    name, averages = "fc1.weight", dict[int, torch.Tensor]()
    for step, snapshot in saved.items():
        if "average/" + name in snapshot.optimizer:
            averages[step] = snapshot.optimizer["average/" + name]
    assert [*averages] == ([3, 6, 9] if overlap == "0" else [6, 9])
    first, last = next(iter(averages)), 9 if overlap == "round" else 6
    assert averages[first].equal(saved[first].model[name])
    # The last line of a run one round late has two rounds.
    pace = 0.8 ** (6 if overlap == "round" else 3)
    expected = torch.lerp(averages[first], saved[last].model[name], 1 - pace)
    torch.testing.assert_close(averages[last], expected)
    assert not any("average" in key for worker in saved[9].workers for key in worker)


@pytest.mark.slow
def test_buffers_are_averaged_at_each_exchange(tmp_path):
    run_threads(local(tmp_path, network="networks:normed", eval_freq=1))
    for step, equal in ((3, True), (4, False)):
        first, second = load(tmp_path, step).workers
        names = [name for name in first if "running" in name]
        assert names
        assert all(first[name].equal(second[name]) for name in names) is equal
    averaged, later = load(tmp_path, 3), load(tmp_path, 4)
    assert averaged.workers[0]["buffer/2.running_mean"].equal(later.model["2.running_mean"])


def test_a_mean_over_senders_is_not_smaller_where_few_send(tmp_path):
    common = {"code": "topk(ratio=0.05)", "max_steps": 3, "memory": "none"}
    start = {name: p.detach() for name, p in make_job(local(tmp_path), 2).model.named_parameters()}
    moved = {}
    for mean in ("workers", "senders"):
        after = ended(local(tmp_path / mean, **common, outer_mean=mean, outer=MEAN)).model
        moved[mean] = torch.cat([(after[name] - start[name]).flatten() for name in start])
    ratio = (moved["senders"] / moved["workers"])[moved["workers"] != 0]
    assert ratio.min() > 0.99
    assert (ratio > 1.9).any()
    assert ratio.max() < 2.1


REFUSED = [
    ({"memory": "dgc", "code": "topk"}, "computes a step from gradients"),
    ({"code": "auto"}, "--code auto measures gradients.*`atomo explain --local-steps` compares"),
    ({"fragments": 2}, "--local-steps 3 must be a multiple of --fragments 2"),
    ({"overlap": "4"}, "--overlap 4 must be below --local-steps/fragments = 3"),
    ({"overlap": "3", "local_steps": "0: 3; 1: 5"}, "not of all rounds"),
    ({"overlap": "round", "fragments": 3}, "needs --fragments 1 and --mix 0"),
    ({"overlap": "-1"}, "a number of steps in 0..10000000, or round, got -1"),
    ({"mix": "2"}, "a share in 0..1, or unsent, got 2"),
    ({"comm_type": "Allreduce", "outer_mean": "senders"}, "needs --comm-type Allgather"),
    ({"local_steps": "0: 1; 1: 3", "outer_mean": "senders"}, "from the first step on"),
    ({"outer": "sign(rate=1)"}, "outer: unknown setting 'rate'"),
    ({"transform": "fft"}, "unknown transform 'fft'"),
    ({"comm_type": "ParameterServer", "mix": "unsent"}, "--mix unsent: .*such as Allgather"),
    ({"local_steps": "0: 3; 1: 1"}, "rounds of 1 step come first"),
    ({"local_steps": "0: 3; 0: 5"}, "increasing order"),
    ({"local_steps": "many"}, "cannot read 'many'"),
    ({"outer": "adam"}, "unknown outer optimizer"),
    ({"ema_decay": 0.9, "mix": "unsent"}, "most entries of which are those of earlier rounds"),
    ({"fusion": "mergecomp"}, "rounds have none"),
    ({"fusion": "auto"}, "rounds have none, so that messages need no other sizes"),
    ({"comm_type": "ParameterServer", "overlap": "round"}, "fewer steps than a round, or give"),
]


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=str)
def test_settings_that_contradict_local_steps_are_refused(case, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        local(tmp_path, **case)
