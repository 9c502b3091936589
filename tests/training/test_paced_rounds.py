"""Rounds of a given time: laws by clocks of the test, one for each rank."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import run_threads
from support.selection import slow_but
from training.test_local_replicas import cut, ended, local

from atomo.config.settings import Settings
from atomo.errors import CheckpointError, ConfigError
from atomo.exchange import Communicator, Exchanged, Report
from atomo.exchange.engine.pipeline import Pipeline
from atomo.training.checkpoints.checkpoint import Snapshot, load
from atomo.training.job.batch_deal import counts, deal, steps_in
from atomo.training.job.job import make_job
from atomo.training.loop import paced_rounds
from atomo.training.loop.anchored_exchange import AnchoredExchange
from atomo.training.loop.paced_rounds import PacedRounds

MEAN = "sgd(lr=1)"


def paced(train_dir: Path, **changes: object) -> Settings:
    """Returns a short run in rounds of half a second; the first has three steps."""
    return local(train_dir, **({"local_seconds": 0.5, "outer": MEAN} | changes))


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl` that end a round."""
    lines = [*map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())]
    return [line for line in lines if line["round"]]


def without_pace(snapshot: Snapshot) -> list[dict[str, torch.Tensor]]:
    """Returns all tensors of a checkpoint except the pace."""
    shared = {name: t for name, t in snapshot.optimizer.items() if "pace" not in name}
    return [dict(snapshot.model), shared, *map(dict, snapshot.workers)]


def same(first: Snapshot, second: Snapshot) -> bool:
    """True if all tensors are equal in every bit."""
    pairs = [*zip(without_pace(first), without_pace(second), strict=True)]
    return all(a.keys() == b.keys() and all(a[n].equal(b[n]) for n in a) for a, b in pairs)


EQUAL = [
    {"code": "topk(ratio=0.1)", "optimizer": "adam"},
    {"comm_type": "PowerSGD", "code": "svd(rank=2)"},
    {"comm_type": "Allreduce", "code": "bf16", "local_steps": "0: 1; 0.1: 4"},
    {"comm_type": "Chunked", "code": "chunktopk", "network": "networks:normed"},
    {"outer": "sign", "code": "topk(ratio=0.1)", "momentum": 0.0},
]


@pytest.mark.parametrize("case", slow_but(EQUAL[:1], EQUAL), ids=str)
def test_equal_speeds_have_the_bits_of_a_number_of_steps(case, clocks, tmp_path):
    clocks(0.125, 0.125)  # four steps in half a second
    common = {"local_steps": "4", "max_steps": 10} | case
    by_time = ended(paced(tmp_path / "time", **common))
    by_number = ended(local(tmp_path / "number", **({"outer": MEAN} | common)))
    assert same(by_time, by_number)


def weighted_by_hand(chosen: Settings, rounds: Sequence[tuple[Sequence[float], int]]) -> Any:
    """Trains by PyTorch alone; between exchanges in float64, weighted by samples.

    Args:
        chosen: the run.
        rounds: for each round the seconds of a local step of each rank, and the steps.
    """
    replicas = []
    for rank in range(chosen.workers):
        torch.manual_seed(0)
        job = make_job(chosen, chosen.workers)
        optimizer = torch.optim.SGD(job.model.parameters(), chosen.lr, momentum=chosen.momentum)
        replicas.append((job, job.shard(rank + 1), optimizer))
    anchor = [p.detach().double() for p in replicas[0][0].model.parameters()]
    step = 0
    for seconds, steps in rounds:
        samples = [0] * len(replicas)
        for row in islice(deal(seconds), steps):
            step += 1
            for place, rank in enumerate(row):
                job, shard, optimizer = replicas[rank]
                batch = job.workload.train.batch(shard.indices(step, place))
                samples[rank] += len(batch.targets)
                optimizer.zero_grad()
                output = job.model(*batch.inputs)
                torch.nn.functional.cross_entropy(output, batch.targets).backward()
                optimizer.step()
        assert sum(samples) == steps * chosen.workers * chosen.batch_size
        models = [[p.detach().double() for p in job.model.parameters()] for job, _, _ in replicas]
        for place in range(len(anchor)):
            weighted = [n * own[place] for n, own in zip(samples, models, strict=True)]
            anchor[place] = torch.stack(weighted).sum(0) / sum(samples)
            for job, _, _ in replicas:
                [*job.model.parameters()][place].data.copy_(anchor[place])
    names = [name for name, _ in replicas[0][0].model.named_parameters()]
    return dict(zip(names, anchor, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("comm_type", ["Allgather", "Allreduce"])
def test_differences_weigh_by_samples(comm_type, clocks, tmp_path):
    seconds = 0.125, 0.125, 0.375  # 9.33 batches in half a second: rounds of 3 steps
    clocks(*seconds)
    chosen = paced(tmp_path, n=3, comm_type=comm_type, max_steps=8, momentum=0.5)
    trained = ended(chosen)
    assert [line["round_steps"] for line in rounds_of(tmp_path)] == [3, 3, 2]
    expected = weighted_by_hand(chosen, [([1.0] * 3, 3), (seconds, 3), (seconds, 2)])
    for name, tensor in expected.items():
        torch.testing.assert_close(trained.model[name].double(), tensor, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_a_sign_step_moves_each_entry_by_the_rate_however_samples_weigh(clocks, tmp_path):
    clocks(0.125, 0.375)
    chosen = paced(tmp_path, outer="sign", momentum=0.0, max_steps=6, eval_freq=3)
    after = ended(chosen)
    assert [line["round_steps_of"] for line in rounds_of(tmp_path)] == [[3, 3], [3, 1], [1, 1]]
    before = load(tmp_path, 3)
    start = dict(make_job(chosen, 2).model.named_parameters())
    for name, parameter in start.items():
        moved = (before.model[name] - parameter.detach()) / chosen.lr
        torch.testing.assert_close(moved, moved.round().clamp(-1, 1), rtol=0, atol=1e-4)
        moved = (after.model[name] - before.model[name]).abs() / chosen.lr
        assert float(moved.max()) < 2 + 1e-4  # two rounds


@pytest.mark.slow
def test_a_process_that_is_three_times_slower_is_not_waited_for(clocks, tmp_path):
    clocks(0.125, 0.375)
    run_threads(paced(tmp_path, local_seconds=1.5, max_steps=30))
    first, *full, _ = rounds_of(tmp_path)
    assert first["round_steps_of"] == [3, 3]  # no speed is known yet
    for line in full:
        fast, slow = line["round_steps_of"]
        assert (fast, slow) == (12, 4)  # 1.5 s each
        assert line["round_steps"] == 8
        assert line["images_used"] == line["images_asked"] == 16 * 32


@pytest.mark.slow
def test_a_slow_first_rank_has_lines_for_the_steps_that_it_takes(clocks, tmp_path):
    clocks(0.375, 0.125)
    run_threads(paced(tmp_path, local_seconds=1.5, max_steps=11))
    lines = [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
    steps = [line["step"] for line in lines]
    assert steps == sorted({*steps})
    assert {3, 11} <= {*steps}
    assert 3 < len(steps) < 11
    assert sum(line["images_used"] for line in lines) == 11 * 2 * 32


@pytest.mark.slow
def test_what_was_sent_and_what_is_kept_are_the_weighted_differences(clocks, tmp_path, monkeypatch):
    pushed: list[tuple[int, torch.Tensor]] = []
    push = Pipeline.push

    def noted(self: Pipeline, bucket: Any, flat: torch.Tensor) -> None:
        pushed.append((bucket.number, flat.clone()))
        push(self, bucket, flat)

    monkeypatch.setattr(Pipeline, "push", noted)
    clocks(0.125, 0.375)
    chosen = paced(tmp_path, code="topk(ratio=0.1)", memory="residual", max_steps=12)
    after = ended(chosen)
    start = make_job(chosen, 2)
    before = {name: parameter.detach() for name, parameter in start.model.named_parameters()}
    for bucket in start.buckets:
        names = [slot.name for slot in bucket.slots]
        moved = torch.cat([(before[name] - after.model[name]).flatten() for name in names])
        states = [{name: state.get("memory/" + name, torch.zeros_like(before[name]))
                   for name in names} for state in after.workers]  # fmt: skip
        kept = sum(torch.cat([state[name].flatten() for name in names]) for state in states)
        total = sum(flat for number, flat in pushed if number == bucket.number)
        torch.testing.assert_close(2 * moved + kept, total, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [EQUAL[0], EQUAL[2]], ids=str)
def test_a_run_resumed_in_the_middle_of_a_round_equals_an_uninterrupted_one(case, clocks, tmp_path):
    clocks(0.125, 0.375)
    common = {"local_seconds": 1.5, "max_steps": 16, "eval_freq": 1} | case
    whole = ended(paced(tmp_path / "whole", **common))
    for step in (5, 11):
        folder = tmp_path / f"after-{step}"
        cut(tmp_path / "whole", folder, step)
        assert same(whole, ended(paced(folder, **common))), step


@pytest.mark.slow
def test_another_number_of_ranks_continues_at_the_anchor(clocks, tmp_path):
    clocks(0.125, 0.375, 0.125)
    common = {"local_seconds": 1.5, "eval_freq": 1}
    run_threads(paced(tmp_path, max_steps=9, **common))
    (tmp_path / "step-00000009.json").unlink()
    after = ended(paced(tmp_path, n=3, max_steps=14, **common))
    assert len(after.workers) == 3
    assert all(bool(tensor.isfinite().all()) for tensor in after.model.values())


class Silent(Communicator):
    """A communicator that no rank answers."""

    def begin(self, *arguments: Any) -> None:
        raise NotImplementedError

    push = average = begin


def test_the_weights_of_ranks_that_counted_sum_to_one(tmp_path):
    """A rank that dies leaves the mean of the others, by their samples."""
    chosen = paced(tmp_path, n=3)
    job = make_job(chosen, 3)
    round_ = job.rounds.at(1)
    images = {0: 160.0, 1: 32.0, 2: 96.0}  # of 288
    differences = {rank: torch.randn(job.entries) for rank in images}
    sent = {}
    for rank, own in images.items():
        replica = AnchoredExchange(job, Silent(), job.model, torch.zeros(job.entries), leads=True)
        replica._differences.copy_(differences[rank])
        replica._weigh(round_, 3 * own / replica._images(round_))
        sent[rank] = replica._differences
    for counted in ((0, 1, 2), (0, 2), (1,)):
        replica._mean = torch.stack([sent[rank] for rank in counted]).sum(0) / len(counted)
        replica._among, replica._in_flight = 3, job.buckets
        reports = {rank: Report(0.0, 0.0, images[rank], 0.0, 0.0, 0.0, 0.0) for rank in counted}
        replica._normalise(round_, Exchanged(reports, 0.0, 0.0, 0.0))
        whole = sum(images[rank] for rank in counted)
        mean = sum(images[rank] / whole * differences[rank].double() for rank in counted)
        torch.testing.assert_close(replica._mean.double(), mean, rtol=1e-5, atol=1e-6)


def test_a_deal_ends_together_and_takes_every_batch():
    for seconds in ([1.0, 1.0], [1.0, 3.0], [0.5, 0.7, 2.0, 0.1], [1.0, 1e9]):
        taken = counts(seconds, 20)
        assert sum(taken) == 20 * len(seconds)
        assert min(taken) >= 1
        usual = max(n * s for n, s in zip(taken, seconds, strict=True) if n > 1)
        for n, s in zip(taken, seconds, strict=True):
            assert (n + 1) * s >= usual  # no rank could have finished one more in time
    assert steps_in(1.0, [0.0]) == 1_000_000


def test_a_rank_that_joins_has_the_median_speed(tmp_path):
    paces = PacedRounds(make_job(paced(tmp_path, n=3, max_steps=100), 3), 0)
    paces.begin(1)
    speeds = {0: 0.1, 1: 0.2, 2: 0.4}
    paces.advance(speeds)
    assert paces.at(4).steps == steps_in(0.5, [0.1, 0.2, 0.4])
    assert paces.steps_of((0, 3, 2), (0, 3, 2)) == tuple(counts([0.1, 0.2, 0.4], 2))


def test_a_slow_first_step_of_a_round_does_not_take_steps_from_a_rank(monkeypatch, tmp_path):
    times = iter([0.0, 0.1] * 8 + [0.0, 5.0] * 3)
    monkeypatch.setattr(paced_rounds, "clock_of", lambda rank: lambda: next(times))
    paces = PacedRounds(make_job(paced(tmp_path, max_steps=100), 2), 0)
    paces.begin(1)
    for _ in range(8):
        with paces.timed():
            pass
    for _ in range(3):
        paces.advance({0: paces.step_s, 1: 0.1})
        with paces.timed():
            pass
        assert paces.step_s == pytest.approx(0.1)


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, -3.0], [1.0, 2.0, float("nan")]])
def test_a_damaged_pace_is_refused(values, tmp_path):
    paces = PacedRounds(make_job(paced(tmp_path), 2), 0)
    with pytest.raises(CheckpointError, match="numbers of a round"):
        paces.load_state_dict({"pace": torch.tensor(values, dtype=torch.float64)})


REFUSED = [
    ({"local_steps": "0: 2; 1: 3"}, "several numbers of steps"),
    ({"outer_mean": "senders"}, "counts the senders"),
    ({"fragments": 3}, "have no --fragments 3"),
    ({"overlap": "round"}, "--overlap round"),
    ({"local_seconds": -1.0}, "must be at least 0"),
]


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=str)
def test_settings_that_contradict_a_time_are_refused(case, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        paced(tmp_path, **case)
